"""Several nodes of which the same is said."""

import pytest
from rich.text import Text

from kubectl_lading.terminal.output import MOST_NAMES, of_nodes

MANY = [f"n{number}" for number in range(MOST_NAMES + 3)]


def rows(names: list[str], *said: str, wide: bool = False) -> list[tuple[str, str]]:
    return [(left, right.plain) for left, right in of_nodes(names, [Text(one) for one in said], wide=wide)]


def test_few_stand_beside_what_is_said_of_them() -> None:
    assert rows(["a", "b"], "full", "fits later") == [("a, b", "full"), ("", "fits later")]


@pytest.mark.parametrize("wide", [False, True])
def test_many_are_counted_and_named_below(wide: bool) -> None:
    first, second = rows(MANY, "full", wide=wide)
    assert first == (f"{len(MANY)} nodes", "full")
    assert (MANY[0] in second[1], MANY[-1] in second[1]) == (True, wide)


def test_of_those_of_which_nothing_is_said_the_names_are() -> None:
    ((_, said),) = rows(["a", "b"], "")
    assert said == "a, b"
