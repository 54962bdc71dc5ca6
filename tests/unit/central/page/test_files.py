"""Test the page's files: each named file exists beside them, below any path, and none needs more than the policy allows."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from central.page.files import INDEX, STANDBY, STATIC, read_files

SERVED = {"v1/cluster"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.attributes: set[str] = set()
        self.inline: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value for name, value in attrs if name in ("src", "href", "action", "data") and value}

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("name", [INDEX, STANDBY])
def test_every_link_of_a_page_is_served(name: str) -> None:
    page = Page((STATIC / name).read_text())
    assert page.links
    assert {link for link in page.links if not link.startswith("#")} <= read_files().keys() | SERVED


@pytest.mark.parametrize("name", [INDEX, STANDBY])
def test_nothing_is_inline(name: str) -> None:
    page = Page((STATIC / name).read_text())
    assert page.inline == []
    assert not [attribute for attribute in page.attributes if attribute == "style" or attribute.startswith("on")]


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_a_module_names_others_beside_it_and_writes_text_only(path: object) -> None:
    text = (STATIC / str(path)).read_text()
    assert {f"./{name}" for name in read_files()} >= set(re.findall(r'\bfrom "([^"]+)"', text))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://|document\.cookie", text
    )


def test_every_file_is_served() -> None:
    assert {path.name for path in STATIC.iterdir()} == read_files().keys()


def test_styles_load_nothing() -> None:
    assert not re.findall(r"@import|url\(", (STATIC / "style.css").read_text())


def test_each_colour_stands_once_for_light_and_once_for_dark() -> None:
    """Check that the dark colours are not listed a second time by hand."""
    named = Counter(re.findall(r"(--[a-z-]+): #", (STATIC / "style.css").read_text()))
    assert named["--page"] == 2
    assert max(named.values()) == 2
