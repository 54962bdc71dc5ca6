"""Test the page by keys alone, and by what a screen reader gets."""

import pytest
from selenium.webdriver.common.keys import Keys

from simnode.page import SimCluster
from tests.page.browser import Tab
from tests.page.conftest import OpenTab
from tests.page.test_page import devices_of, lit


def where(tab: Tab) -> tuple[str, str]:
    """Return the node and the cell that have the focus; an empty cell stands for the node's name."""
    result = tab.script(
        "const at = document.activeElement; return [at.closest('.node')?.dataset.node ?? at.id, at.dataset.cell ?? '']"
    )
    return result[0], result[1]


def cells(tab: Tab, node: str) -> list[str]:
    return list(
        tab.script(
            f"return [...document.querySelectorAll('.node[data-node=\"{node}\"] [data-cell]')].map((c) => c.dataset.cell)"
        )
    )


def tab_to_map(tab: Tab) -> None:
    for _ in range(30):
        tab.press(Keys.TAB)
        if tab.script("return document.activeElement.closest('#map') !== null"):
            return
    raise AssertionError("the map was not reached")


def test_the_map_by_arrow_keys(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    first, second, *_ = rows = tab.rows()
    tab_to_map(tab)
    assert where(tab) == (first, "")
    tab.press(Keys.ARROW_RIGHT)
    assert where(tab) == (first, cells(tab, first)[1])
    tab.press(Keys.ARROW_DOWN)
    assert where(tab) == (second, cells(tab, second)[1])
    tab.press(Keys.END)
    assert where(tab) == (second, cells(tab, second)[-1])
    tab.press(Keys.ARROW_RIGHT)  # there is none behind it
    assert where(tab) == (second, cells(tab, second)[-1])
    tab.press(Keys.HOME)
    assert where(tab) == (second, "")
    tab.press(Keys.ARROW_UP, Keys.ARROW_UP)
    assert where(tab) == (first, "")
    tab.press(Keys.PAGE_DOWN)
    assert where(tab) == (rows[-1], "")
    assert len(tab.all("#map [tabindex='0']")) == 1  # Tab passes the map in one step


def test_a_far_row_by_keys(tab_on: OpenTab) -> None:
    tab = tab_on(SimCluster(200)).open_drawn()
    tab_to_map(tab)
    last = tab.rows()[-1]
    tab.script(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', ctrlKey: true, bubbles: true }))"
    )
    assert where(tab)[0] == last
    rect = tab.focused().rect
    assert 0 <= rect["y"] - tab.script("return scrollY") < tab.script("return innerHeight")


def test_everything_by_keys_alone(small: SimCluster, tab_on: OpenTab) -> None:
    """Go from the address bar to a pod's devices, to a node, and back, by keys alone."""
    node, gpus, _ = devices_of(small, "train")
    tab = tab_on(small).open_drawn()
    tab.press("/", *"train", Keys.TAB, Keys.TAB, Keys.TAB)
    tab_to_map(tab)
    while where(tab)[1] != gpus[0]:
        before = where(tab)
        tab.press(Keys.ARROW_RIGHT)
        assert where(tab) != before
    tab.press(Keys.ENTER)
    assert set(gpus) < lit(tab)
    assert tab.focused().tag_name == "h2"
    tab.press(Keys.TAB, Keys.TAB, Keys.ENTER)  # past Close, on the node of its first device
    assert f"node {node}" in tab.text("#panel h2")
    tab.press(Keys.ESCAPE)
    assert not tab.one("#panel").is_displayed()
    assert where(tab)[1] == gpus[0]
    tab.press(Keys.ESCAPE)
    tab.until(lambda: len(tab.rows()) == 3)


def test_the_focus_can_be_observed(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    tab_to_map(tab)
    tab.press(Keys.ARROW_RIGHT)
    style = "return getComputedStyle(document.activeElement).outlineStyle"
    assert tab.script(style) == "solid"


def test_names_and_roles_of_the_map(small: SimCluster, tab_on: OpenTab) -> None:
    node, gpus, vfs = devices_of(small, "train")
    tab = tab_on(small).open_drawn()
    grid = tab.one("#map")
    assert (grid.aria_role, grid.accessible_name) == ("grid", "Map of the cluster")
    row = tab.one(f'.node[data-node="{node}"]')
    free = sum(card.free for card in small.ledger.capacity(node).cards)
    assert row.aria_role == "row"
    assert row.accessible_name.startswith(f"{node}, ready, {free} free, ")
    assert tab.head(node).aria_role == "rowheader"
    for uuid in gpus:
        cell = tab.cell(uuid)
        assert cell.aria_role == "gridcell"
        assert "held whole by team/train" in cell.accessible_name
    nic = next(pf for pf in small.status(node).pfs if any(vf.bdf in vfs for vf in pf.vfs))
    cell = tab.cell(nic.bdf, node)
    assert (cell.aria_role, f"NIC {nic.ibdev}" in cell.accessible_name) == ("gridcell", True)
    assert "team/train" in cell.accessible_name


def test_names_and_roles_around_the_map(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn("#node=gpu-01")
    expected = {
        "#search": ("searchbox", "Search: pod, node, GPU, model, problem or reason"),
        "#sort": ("combobox", "Order"),
        "#group": ("combobox", "Group"),
        "#theme": ("button", "Theme: auto"),
        "#tools": ("search", "Search and order"),
        "#panel": ("complementary", "Details"),
        "#panel [data-key=close]": ("button", "Close details"),
        "#waiting": ("region", "1 pod waits for devices"),
        "#connection": ("status", ""),
    }
    result = {css: (tab.one(css).aria_role, tab.one(css).accessible_name) for css in expected}
    assert result == expected
    named = [one for one in tab.all("button, input, select, a") if one.is_displayed()]
    assert all(one.accessible_name for one in named)


def test_changes_are_reported(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    news = tab.one("#news")
    assert (news.get_attribute("aria-live"), news.aria_role) == ("polite", "status")
    assert "3 nodes" in tab.text("#news")
    free = sum(card.free for room in small.ledger.capacities() for card in room.cards)
    assert f"{free} of 24 GPUs free" in tab.text("#news")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(small: SimCluster, tab_on: OpenTab, scheme: str) -> None:
    """Check the contrast by WCAG 2.2, 1.4.3 and 1.4.11: 4.5 to 1 for text, 3 to 1 for the shapes of marks."""
    tab = tab_on(small)
    tab.emulate(prefers_color_scheme=scheme)
    tab.open_drawn()
    names = (
        "ink",
        "soft",
        "page",
        "sheet",
        "held",
        "on-held",
        "free",
        "edge",
        "used",
        "track",
        "bad",
        "bad-soft",
        "link",
        "lit",
    )
    read = "const s = getComputedStyle(document.documentElement); return arguments[0].map((n) => s.getPropertyValue('--' + n))"
    colour = {name: message.strip() for name, message in zip(names, tab.script(read, names), strict=True)}
    for text, ground in (("ink", "page"), ("ink", "sheet"), ("soft", "page"), ("soft", "sheet"), ("on-held", "held"),
                         ("link", "sheet"), ("bad", "sheet"), ("ink", "bad-soft")):  # fmt: skip
        assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for mark, ground in (("held", "free"), ("held", "sheet"), ("edge", "sheet"), ("used", "track"), ("bad", "free")):
        assert contrast(colour[mark], colour[ground]) >= 3, (mark, ground)


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
