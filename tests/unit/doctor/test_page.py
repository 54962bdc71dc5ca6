"""Check that docs/doctor.md has a row for each check of lading-doctor, with the title that the code has, and a remedy."""

import re

import pytest

from doctor.checks import CHECKS, decide_cdi
from doctor.host import CdiReading
from lading.checks.model import Verdict
from lading.runtime import CdiSupport
from tests.docs import section
from tests.unit.doctor.verdicts import only


def test_the_page_has_every_check() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.+) \|$", section("doctor.md", "## Checks"), re.MULTILINE)
    assert [row[:3] for row in rows] == list(dict.fromkeys((check.name, check.what, check.why) for check in CHECKS))


def test_groups_stand_together_and_names_are_distinguished() -> None:
    assert len({(check.name, check.of) for check in CHECKS}) == len(CHECKS)
    groups = [check.group for check in CHECKS]
    assert groups == sorted(groups, key=groups.index)


@pytest.mark.parametrize(
    ("needed", "problem", "state"), [(True, "", Verdict.OK), (True, "off", Verdict.FAILED), (False, "off", Verdict.OK)]
)
def test_cdi_where_it_is_needed(needed: bool, problem: str, state: Verdict) -> None:
    assert only(decide_cdi(CdiReading(needed=needed, support=CdiSupport(problem=problem)))).verdict is state


@pytest.mark.parametrize(("folder", "state"), [("/run/cdi", Verdict.OK), ("/etc/cdi", Verdict.FAILED), ("", Verdict.OK)])
def test_a_runtime_that_does_not_read_ladings_folder(folder: str, state: Verdict) -> None:
    support = CdiSupport(spec_dirs=("/var/run/cdi",) if folder != "/run/cdi" else ("/run/cdi",))
    assert only(decide_cdi(CdiReading(needed=True, support=support, folder=folder))).verdict is state
