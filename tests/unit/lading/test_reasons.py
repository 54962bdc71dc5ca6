import re
from pathlib import Path

from lading.reasons import Reason

REASONS = Path(__file__).parents[3] / "docs" / "reasons.md"


def test_every_reason_is_explained_once_with_what_to_do() -> None:
    sections = re.split(r"^### ", REASONS.read_text(), flags=re.MULTILINE)[1:]
    explained = [section.split("`")[1] for section in sections]
    assert sorted(explained) == sorted(Reason)
    assert [code for code, section in zip(explained, sections, strict=True) if "**Do:**" not in section] == []
