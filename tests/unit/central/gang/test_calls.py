"""Test sets of node names that are stored as bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.gang import calls
from central.gang.calls import Numbered


@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=3), max_size=20), min_size=1, max_size=20))
def test_sets_of_node_names_are_sets(lists: list[list[str]]) -> None:
    numbered = Numbered()
    sets = [numbered.of(names) for names in lists]
    for names, made in zip(lists, sets, strict=True):
        assert (set(made), len(made), len([*made])) == (set(names), len(set(names)), len(set(names)))
        assert all(name in made for name in names)
        assert "other" not in made
    assert all(
        (a == b) == (set(x) == set(y)) for x, a in zip(lists, sets, strict=True) for y, b in zip(lists, sets, strict=True)
    )
    assert len(set(sets)) == len({frozenset(names) for names in lists})


def test_numbers_begin_anew_when_there_are_too_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_NAMES", 10)
    numbered = Numbered()
    sets = [numbered.of([f"n{number}", f"n{number + 1}"]) for number in range(100)]
    assert [sorted(made) for made in sets] == [sorted([f"n{number}", f"n{number + 1}"]) for number in range(100)]
    assert len(sets[-1]._bits) <= 2
