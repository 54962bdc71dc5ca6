"""Test that pictures are well-formed, draw each value at its place, and are readable on light and dark."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from simulate.flags import POLICIES
from simulate.pictures import HEIGHT, WIDTH, Picture, draw

SVG = "{http://www.w3.org/2000/svg}"


def drawn(**lines: list[tuple[float, float]]) -> ET.Element:
    return ET.fromstring(draw(Picture(title="a < b", across="x", upward="y", lines=lines)))  # noqa: S314  (our own)


def points(line: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def names(root: ET.Element) -> dict[str, float]:
    result = [text for text in root.iter(f"{SVG}text") if text.attrib.get("class", "").endswith("name")]
    return {(text.text or "").split()[0]: float(text.attrib["y"]) for text in result}


def test_lines_go_up_where_values_do() -> None:
    root = drawn(one=[(0, 0), (50, 10), (100, 20)], two=[(0, 0), (100, 5)])
    first, second = map(points, root.iter(f"{SVG}polyline"))
    assert first[0][1] > first[1][1] > first[2][1]
    assert first[1][0] - first[0][0] == first[2][0] - first[1][0]
    assert second[1][1] > first[2][1]


def test_each_line_has_its_name_and_last_value_beside_it() -> None:
    root = drawn(one=[(0, 0), (100, 20)], two=[(0, 0), (100, 5)])
    assert names(root).keys() == {"one", "two"}
    assert names(root)["one"] < names(root)["two"]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_names_do_not_overlap_and_all_is_on_the_paper(ends: list[float]) -> None:
    root = drawn(**{f"n{number}": [(0.0, 0.0), (100.0, end)] for number, end in enumerate(ends)})
    heights = sorted(names(root).values())
    assert all(b - a >= 15 for a, b in pairwise(heights))
    assert all(0 < height < HEIGHT for height in heights)
    for line in root.iter(f"{SVG}polyline"):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(line))


def test_points_before_the_first_x_are_cut_off() -> None:
    picture = Picture(title="t", across="x", upward="y", lines={"a": [(0, 0), (70, 7), (100, 9)]}, x_from=70)
    (line,) = ET.fromstring(draw(picture)).iter(f"{SVG}polyline")  # noqa: S314
    assert len(points(line)) == 2


def test_for_light_and_dark_paper() -> None:
    text = draw(Picture(title="t", across="x", upward="y", lines={"a": [(0, 0), (1, 1)], "b": [(0, 0), (1, 2)]}))
    assert "prefers-color-scheme:dark" in text
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', text))) == 2


def test_every_policy_has_a_line_of_its_own() -> None:
    """Check that no two lines have the same ink and dash in one picture."""
    picture = Picture(title="t", across="x", upward="y", lines={name: [(0, 0), (1, n)] for n, name in enumerate(POLICIES)})
    text = draw(picture)
    drawn = list(ET.fromstring(text).iter(f"{SVG}polyline"))  # noqa: S314
    for attribute in ("class", "stroke-dasharray"):
        assert len({line.attrib[attribute] for line in drawn}) == len(POLICIES)
    inks = re.findall(r"\.ink\d+\{stroke:(#\w+)\}", text)  # for light paper, then for dark
    assert len(set(inks[: len(inks) // 2])) == len(set(inks[len(inks) // 2 :])) == len(inks) // 2
