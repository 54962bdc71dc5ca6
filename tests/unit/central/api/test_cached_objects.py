"""Test which events are news."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.api.cached_objects import CachedObjects, Ident, News

NOTHING = News(None, False)


@dataclass(frozen=True)
class Meta:
    name: str
    resource_version: str
    uid: str = "u1"
    namespace: str = "ns"


def known(*objects: Meta, version: str = "100") -> CachedObjects:
    one = CachedObjects()
    one.listed(objects, version)
    return one


def test_new_changed_and_deleted() -> None:
    one = known(Meta("a", "90"))
    assert one.event(Meta("b", "101", "u2"), deleted=False) == News(None, True)
    assert one.event(Meta("a", "102"), deleted=False) == News(None, True)
    assert one.event(Meta("a", "103"), deleted=True) == News(Ident("ns", "a", "u1"), False)
    assert len(one) == 1
    assert one.reached == "103"


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("version", ["100", "99", "9"])
def test_late_and_repeated_events_are_dropped(version: str, deleted: bool) -> None:
    """Check that an event is ignored if its version is not newer than the list. An object that is not in the list was deleted
    before."""
    one = known(Meta("a", "100"))
    assert one.event(Meta("a", version), deleted=deleted) == NOTHING
    assert one.event(Meta("b", version, "u2"), deleted=deleted) == NOTHING
    assert one.reached == "100"


def test_an_object_that_is_deleted_does_not_come_back() -> None:
    one = known(Meta("a", "100"))
    one.event(Meta("a", "105"), deleted=True)
    assert one.event(Meta("a", "104"), deleted=False) == NOTHING


def test_another_uid_under_the_same_name() -> None:
    one = known(Meta("a", "90", "old"))
    assert one.event(Meta("a", "101", "new"), deleted=False) == News(Ident("ns", "a", "old"), True)
    assert one.event(Meta("a", "102", "newer"), deleted=True) == News(Ident("ns", "a", "new"), False)
    assert one.event(Meta("a", "103", "newest"), deleted=True) == NOTHING


def test_the_same_name_in_another_namespace_is_another() -> None:
    one = known(Meta("a", "90"))
    assert one.event(Meta("a", "101", "u2", "other"), deleted=False) == News(None, True)
    assert len(one) == 2


def test_a_bookmark_moves_forward_only() -> None:
    one = known()
    one.bookmark("150")
    one.bookmark("120")
    assert one.reached == "150"
    assert one.event(Meta("a", "149"), deleted=False) == NOTHING


def test_versions_grow_beyond_their_digits_and_beyond_64_bits() -> None:
    one = known(version="999")
    assert one.event(Meta("a", "1000"), deleted=False).there
    assert one.event(Meta("a", str(1 << 70)), deleted=False).there
    assert not one.event(Meta("a", "1001"), deleted=False).there


def test_versions_that_are_no_numbers_are_only_distinguished() -> None:
    one = known(version="abc")
    assert one.event(Meta("a", "aaa"), deleted=False).there
    assert not one.event(Meta("a", "aaa"), deleted=False).there


def test_a_store_that_was_restored_counts_anew() -> None:
    one = known(Meta("a", "90"))
    one.listed([], "5")
    assert one.event(Meta("b", "6"), deleted=False).there


@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    repeats=st.lists(st.integers(0, 40), max_size=20),
)
def test_repeated_events_change_nothing(changes: list[tuple[str, bool]], repeats: list[int]) -> None:
    """Check that repeated old events in a stream change nothing."""
    stream: list[tuple[Meta, bool]] = []
    alive: dict[str, str] = {}
    for version, (name, delete) in enumerate(changes, start=1):
        uid = alive.get(name, f"{name}{version}")
        deleted = delete and name in alive
        stream.append((Meta(name, str(version), uid), deleted))
        if deleted:
            del alive[name]
        else:
            alive[name] = uid
    one, observed = known(version="0"), dict[str, str]()
    for i, current in enumerate(stream):
        again = [stream[at] for at in repeats if at < i]
        for meta, deleted in [current, *again]:
            news = one.event(meta, deleted=deleted)
            if news.deleted is not None:
                assert observed.pop(news.deleted.name) == news.deleted.uid
            if news.there:
                observed[meta.name] = meta.uid
    assert observed == alive
