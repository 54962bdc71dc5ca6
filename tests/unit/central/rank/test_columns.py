"""Test free capacities as columns: rows that are added, changed, removed and reused."""

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from central.assignment.model import Part
from central.ledger.ledger import Ledger
from central.ledger.model import CardCapacity, NodeCapacity
from central.rank.columns import FREE, MOST_WAIT, PLENTY, Columns, Followed, first_of, left_of, milli_requested, rows_of
from central.request.model import NO_CPU_MEMORY, CpuMemory
from tests.fakes.capacities import MODEL, capacity, card, held, mig_card
from tests.unit.central.ledger.facts import READY, report, share, uid


def sized(one: NodeCapacity, cpu_milli: int = 8000, memory_mib: int = 4096) -> NodeCapacity:
    return replace(one, cpu_milli=cpu_milli, memory_mib=memory_mib, resources_reported=True)


@pytest.fixture
def columns() -> Columns:
    return Columns()


@pytest.mark.parametrize(
    ("one", "milli"),
    [
        (card(0, usable_mib=1000), 1000),
        (card(0, usable_mib=1000, free_mib=730), 730),
        (card(0, usable_mib=1000, free_mib=730, free_core=40), 400),
        (card(0, usable_mib=3000, free_mib=2999), 999),
        (card(0, usable_mib=1000, free_core=100, containers=1), 999),  # someone has it, for next to nothing
        (card(0, usable_mib=1000, unhealthy="Xid 79"), 0),
        (held(0), 0),
        (mig_card(0, "1g.10gb"), 0),
        (card(0, usable_mib=0), 0),
    ],
)
def test_the_free_milli_of_a_card(columns: Columns, one: CardCapacity, milli: int) -> None:
    columns.put(capacity(one))
    assert (left_of(one), int(columns.cards[0, FREE, 0])) == (milli, milli)


def test_the_free_milli_of_a_card_without_another_part() -> None:
    one = card(0, usable_mib=1000)
    parts = (Part(whole=True), Part(250, 10), Part(100, 50))
    assert [left_of(one, part) for part in parts] == [0, 750, 500]


@pytest.mark.parametrize(
    ("requested", "milli"), [((1000, 250, None), 250), ((1000, 251, 30), 300), ((3000, 1, None), 1), ((1000, None, 7), 70)]
)
def test_the_milli_that_a_share_requests(requested: tuple[int, int | None, int | None], milli: int) -> None:
    assert milli_requested(*requested) == milli


@pytest.mark.parametrize("requested", [(1000, 1001, None), (0, 1, None)])
def test_a_share_that_no_such_card_has(requested: tuple[int, int | None, int | None]) -> None:
    assert milli_requested(*requested) > 1000


def test_a_node_that_goes_leaves_its_row_to_the_next(columns: Columns) -> None:
    for number in range(3):
        columns.put(sized(capacity(card(0), card(1), name=f"n{number}")))
    tick = columns.tick
    columns.drop("n1")
    columns.drop("n1")
    columns.put(sized(capacity(card(0), name="n9"), cpu_milli=1))
    assert columns.row_of == {"n0": 0, "n9": 1, "n2": 2}
    assert columns.states(np.array([1])).left[0].tolist() == [1]
    assert columns.cards[1, FREE].tolist() == [1000, 0]
    assert columns.changed_since(tick).tolist() == [1]
    assert columns.changed_since(columns.tick).tolist() == []


def test_larger_nodes_and_more_of_them(columns: Columns) -> None:
    columns.put(capacity(card(0), name="small"))
    for number in range(200):
        columns.put(capacity(*(card(slot) for slot in range(number % 9)), name=f"n{number}"))
    assert columns.slots == 8
    assert columns.cards[columns.row_of["small"], FREE].tolist() == [1000] + [0] * 7
    assert columns.cards[columns.row_of["n197"], FREE].tolist() == [1000] * 8
    assert len(columns.changed_since(-1)) == 201


def test_cards_are_counted_by_kind_of_node(columns: Columns) -> None:
    for name, one in (("a", card(0)), ("b", card(0)), ("c", card(0, model="B")), ("d", mig_card(0, "1g.10gb"))):
        columns.put(capacity(one, card(1), name=name))
    columns.drop("b")
    counted = dict(zip(columns.kinds, columns.cards_by_kind(), strict=True))
    assert {kind.model: count for kind, count in counted.items()} == {"": 0, MODEL: 3, "B": 2}


def test_places_of_pods_and_what_is_free_of_a_model(columns: Columns) -> None:
    other = replace(card(0), gpu=msgspec.structs.replace(card(0).gpu, model="other"))
    columns.put(sized(capacity(card(0), card(1), card(2), card(3), name="some"), 8000, 9000))
    columns.put(sized(capacity(card(0), card(1), card(2, free_core=50), name="more"), 4000, 90_000))
    columns.put(sized(capacity(other, name="other"), 64_000, 90_000))
    places = [columns.places(gpus, (), NO_CPU_MEMORY) for gpus in (1, 2, 4)]
    assert places == [7, 3, 1]
    assert [columns.places(1, (model,), NO_CPU_MEMORY) for model in (MODEL, "other", "none")] == [6, 1, 0]
    assert [
        columns.places(2, (), CpuMemory(*requested)) for requested in ((4000, 0), (4001, 0), (8001, 0), (0, 9000), (0, 9001))
    ] == [3, 1, 0, 2, 1]
    free = [columns.free_milli(models) for models in ((), (MODEL,), ("other",), ("other", MODEL), ("none",))]
    assert free == [7500, 6500, 1000, 7500, 0]


def test_load_is_reported_by_itself(columns: Columns) -> None:
    columns.put(sized(capacity(card(0))))
    tick = columns.tick
    columns.load("n1", 8000, 4096, True)  # the same values again
    columns.load("nobody", 1, 1, True)
    assert columns.tick == tick
    columns.load("n1", 7000, 4096, True)
    assert columns.changed_since(tick).tolist() == [0]
    assert columns.changed_since(tick, devices_only=True).tolist() == []
    columns.load("n1", 0, 0, False)
    assert columns.left[:, 0].tolist() == [PLENTY, PLENTY]


def test_the_first_of_equals_is_that_by_name_or_by_a_given_order() -> None:
    for order, first in ((None, "a"), (lambda name: -ord(name), "c")):
        columns = Columns(order)
        for name in "bca":
            columns.put(capacity(name=name))
        rows = rows_of(columns, ["b", "c", "nobody", "a"])
        assert columns.names[first_of(columns, rows)] == first


def test_columns_keep_up_with_a_ledger() -> None:
    ledger = Ledger()
    followed = Followed(Columns(), ledger.capacities_changed_since, ledger.loads_changed_since)
    ledger.facts.set_node("n1", READY, 1)
    ledger.facts.set_report(report("n1"))
    columns = followed.catch_up()
    assert columns.cards[0, FREE].tolist() == [1000, 1000]
    ledger.claims.predict(uid("a"), "n1", share(0, ledger.capacity("n1").cards[0].gpu.usable_mib // 2), until=1)
    assert followed.catch_up().cards[0, FREE].tolist() == [500, 1000]
    tick = columns.tick
    assert followed.catch_up().tick == tick
    ledger.expire(1)
    ledger.facts.remove_report("n1", 9)
    followed.catch_up()
    assert (columns.row_of, columns.serving[0]) == ({}, 1)


def test_a_row_that_could_not_be_put_is_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a fault in the middle loses no row."""
    capacities = [("n1", capacity(card(0), name="n1")), ("n2", capacity(card(0), name="n2"))]
    followed = Followed(Columns(), lambda version: (capacities if version < 1 else [], 1), lambda version: ([], 0))
    put = Columns.put

    def fails_once(columns: Columns, one: NodeCapacity) -> None:
        monkeypatch.setattr(Columns, "put", put)
        raise RuntimeError

    monkeypatch.setattr(Columns, "put", fails_once)
    with pytest.raises(RuntimeError):
        followed.catch_up()
    assert followed.catch_up().row_of.keys() == {"n1", "n2"}


def test_a_node_that_always_fails_stops_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the node is read again after 1, 2, 4 … updates, and at least after each MOST_WAIT."""
    capacities = [("n1", capacity(card(0), name="n1")), ("n2", capacity(card(0), name="n2"))]
    followed = Followed(Columns(), lambda version: (capacities if version < 1 else [], 1), lambda version: ([], 0))
    put = Columns.put

    def fails(columns: Columns, one: NodeCapacity) -> None:
        if one.name == "n1":
            raise RuntimeError
        put(columns, one)

    monkeypatch.setattr(Columns, "put", fails)
    failed = []
    for number in range(5 * MOST_WAIT):
        try:
            assert followed.catch_up().row_of.keys() == {"n2"}
        except RuntimeError:
            failed.append(number)
    intervals = [after - before for before, after in itertools.pairwise(failed)]
    assert intervals[:4] == [1, 2, 4, 8]
    assert intervals[-2:] == [MOST_WAIT, MOST_WAIT]


def test_an_absurd_card_is_a_card(columns: Columns) -> None:
    columns.put(capacity(card(0, usable_mib=2**63)))
    assert columns.names == ["n1"]
