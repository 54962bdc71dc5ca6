"""Test that the tests, links and manifests of the pages exist and are valid."""

import re
import textwrap
from pathlib import Path
from typing import Final

import msgspec
import pytest
import yaml

from central.request.gang import parse_membership
from central.request.model import DeviceRequest, MalformedRequest
from central.request.parse import parse_request
from central.request.pod import Pod
from tests.docs import ROOT

PAGES: Final = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def test_every_bug_has_a_test_that_exists() -> None:
    cells = re.findall(r"^\| .* \| ([^|]*) \|$", (ROOT / "docs/bugs.md").read_text(), re.MULTILINE)
    rows = [cell for cell in cells if cell != "test"]  # the other cells are heads of tables
    assert rows
    for row in rows:
        assert "`" in row
        source = ""
        for path, name in re.findall(r"`([^`:]*)(?:::([^`]+))?`", row):
            source = (ROOT / path).read_text() if path else source  # a name alone is in the file of the one before
            assert f"def {name}(" in source if name else source, (path, name)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _without_code(page)):
        path, _, anchor = link.partition("#")
        if not path.startswith("http"):
            target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    text = _without_code(page.relative_to(ROOT).as_posix())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | {*named}


def _without_code(page: str) -> str:
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def _manifests() -> list[tuple[str, str]]:
    """Return every YAML block of a page that has containers."""
    blocks = [
        (page, block)
        for page in PAGES
        for block in re.findall(r"^ *```yaml\n(.*?)^ *```", (ROOT / page).read_text(), re.M | re.S)
    ]
    return [(page, textwrap.dedent(block)) for page, block in blocks if "containers:" in block and "limits:" in block]


@pytest.mark.parametrize(("page", "manifest"), _manifests())
def test_manifests_ask_for_something_that_has_a_meaning(page: str, manifest: str) -> None:
    text = yaml.safe_load(manifest)
    text = text["spec"].get("template", text)
    text["metadata"] = {"name": "shown", "namespace": "default", "uid": "u"} | text.get("metadata", {})
    for container in text["spec"]["containers"]:
        container.setdefault("name", "shown")
        limits = container.get("resources", {}).get("limits", {})
        limits.update({name: str(amount) for name, amount in limits.items()})
    pod = msgspec.convert(text, Pod)
    assert isinstance(parse_request(pod), DeviceRequest)
    assert not isinstance(parse_membership(pod), MalformedRequest)
