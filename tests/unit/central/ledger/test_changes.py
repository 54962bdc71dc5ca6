from central.ledger.changes import Changes


def test_a_reader_pays_for_each_changed_node_once() -> None:
    changes = Changes()
    for name in ("a", "b", "a"):
        changes.mark(name)
    assert changes.since(-1) == ["a", "b"]
    assert changes.since(1) == ["a", "b"]
    assert changes.since(2) == ["a"]
    assert changes.since(changes.version) == []


def test_each_node_that_got_room_is_reported_once() -> None:
    changes = Changes()
    for name in ("b", "a", "b"):
        changes.free(name)
    assert changes.take_freed() == ("b", "a")
    assert changes.take_freed() == ()
