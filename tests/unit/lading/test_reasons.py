"""One closed list: what a node refuses by and what central does, each explained once, with what to do."""

import re
from collections import Counter

from central.request.reasons import OfBinding, OfPod
from central.search.placement import Missing
from lading.reasons import Reason
from tests.docs import ROOT

ALL = [*Reason, *Missing, *OfPod, *OfBinding]


def test_every_reason_is_explained_once_with_what_to_do() -> None:
    sections = re.split(r"^### ", (ROOT / "docs/reasons.md").read_text(), flags=re.MULTILINE)[1:]
    explained = [section.split("`")[1] for section in sections]
    assert sorted(explained) == sorted({code.value for code in ALL})
    assert [code for code, section in zip(explained, sections, strict=True) if "**Do:**" not in section] == []


def test_a_code_means_one_thing() -> None:
    """A code that is added to this set means the same on a node and in central, and stands once in the docs."""
    assert {code for code, times in Counter(code.value for code in ALL).items() if times > 1} == {Missing.NOT_RECONCILED.value}


def test_codes_are_the_names() -> None:
    assert [code.value for code in ALL] == [code.name.lower().replace("_", "-") for code in ALL]
