"""docs/doctor.md has a row for each check of either doctor, with the words of the code, and says what mends it."""

import re
from typing import Any

import pytest

from hooks.doctor.checks import CHECKS as HOOKS
from hooks.doctor.checks import decide_cdi
from hooks.doctor.host import CdiSeen
from lading.doctor.model import Check, State
from lading.runtime import CdiSupport
from runtimeproxy.doctor.checks import CHECKS as PROXY
from tests.docs import section
from tests.unit.lading.doctor.verdicts import only


@pytest.mark.parametrize(
    ("heading", "checks"), [("## `lading-hooks doctor`", HOOKS), ("## `lading-runtimeproxy doctor`", PROXY)]
)
def test_the_page_has_every_check(heading: str, checks: tuple[Check[Any], ...]) -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.+) \|$", section("doctor.md", heading), re.MULTILINE)
    assert [row[:3] for row in rows] == [(check.name, check.what, check.why) for check in checks]


@pytest.mark.parametrize("checks", [HOOKS, PROXY])
def test_groups_stand_together_and_names_are_told_apart(checks: tuple[Check[Any], ...]) -> None:
    assert len({check.name for check in checks}) == len(checks)
    groups = [check.group for check in checks]
    assert groups == sorted(groups, key=groups.index)


@pytest.mark.parametrize(
    ("needed", "problem", "state"), [(True, "", State.OK), (True, "off", State.FAILED), (False, "off", State.OK)]
)
def test_cdi_where_it_is_needed(needed: bool, problem: str, state: State) -> None:
    assert only(decide_cdi(CdiSeen(needed=needed, support=CdiSupport(problem=problem)))).state is state
