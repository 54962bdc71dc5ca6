"""Test the parts of the tests, and which tests one worker has."""

from typing import cast

import pytest

from tests.conftest import ByFixtures
from tests.depth import FEW, ONE_OF, QUICK, REST, choose


class Marked:
    def __init__(self, nodeid: str, marks: tuple[str, ...]) -> None:
        self.nodeid = nodeid
        self.marks = marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def item(nodeid: str, *marks: str) -> pytest.Item:
    return cast("pytest.Item", Marked(nodeid, marks))


def test_one_of_some_tests_of_a_file_with_the_first_and_the_last_parameters_is_in_the_quick_part() -> None:
    alike = [item(f"tests/a.py::test[{number}[x]]") for number in range(100)]
    next_ones = [item(f"tests/a.py::test_{number}") for number in range(ONE_OF)]
    others = [item("tests/b.py::test"), item("tests/c.py::test[1]"), item("tests/c.py::test[2]")]
    items = [*alike, *next_ones, *others]
    quick, rest = choose(items, QUICK), choose(items, REST)
    assert quick == {alike[0], alike[-1], next_ones[-1], *others}
    assert len(quick) == FEW + 1 + len(others)
    assert quick | rest == {*items}
    assert not quick & rest


def test_what_is_long_is_in_the_rest_and_what_repeats_itself_in_both() -> None:
    long, repeats = item("tests/a.py::test[1]", "long"), item("tests/b.py::test[2]", "repeats")
    assert choose([long, repeats], QUICK) == {repeats}
    assert choose([long, repeats], REST) == {long, repeats}


def test_one_worker_has_a_file_or_a_folder_whose_fixtures_are_slow() -> None:
    split = object.__new__(ByFixtures)._split_scope
    assert split("tests/node/test_a.py::test[1::2]") == split("tests/node/test_a.py::Test::test")
    assert split("tests/node/test_a.py::test") != split("tests/node/test_b.py::test")
    assert split("tests/page/test_a.py::test") == split("tests/page/test_b.py::test")
