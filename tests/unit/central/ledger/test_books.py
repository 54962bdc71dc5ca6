"""Test how the books remember deleted objects."""

import pytest

from central.ledger import books
from central.ledger.books import Deleted


def test_an_event_from_before_a_removal_is_outdated() -> None:
    removed = Deleted[str]()
    removed.put("a", 5)
    removed.put("a", 3)  # an older removal, late
    assert [version for version in (4, 5, 6) if removed.outdates("a", version)] == [4, 5]
    assert not removed.outdates("b", 0)


def test_only_the_last_removals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_DELETED", 2)
    removed = Deleted[str]()
    for key in ("a", "b", "a", "c"):
        removed.put(key)
    assert [key for key in "abc" if key in removed] == ["a", "c"]
