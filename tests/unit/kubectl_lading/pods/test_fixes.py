"""What the command line says to do is what docs/reasons.md says; tests/unit/lading/test_reasons.py looks for every reason."""

import re

from kubectl_lading.pods.situation import FIXES
from tests.docs import ROOT


def test_they_are_those_of_the_page() -> None:
    page = (ROOT / "docs/reasons.md").read_text()
    parts = re.findall(r"^### `([a-z-]+)`\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert len(parts) > 60
    assert {code: _do(body) for code, body in parts} == FIXES


def _do(body: str) -> str:
    """Without links; those that are a page's name get its folder."""
    found = re.search(r"\*\*Do:\*\*\s(.*?)(?:\n\n|\Z)", body, re.DOTALL)
    assert found, body
    words = " ".join(found[1].split())
    words = re.sub(r"\[(\w+\.md)\]", r"[docs/\1]", words)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
