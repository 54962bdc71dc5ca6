"""Test that counting in columns gives the verdicts of the exact fit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.ledger.model import CardCapacity, NodeCapacity
from central.rank.columns import Columns, Ints, left_of
from central.rank.vectors import REASONS, Wish, choices, fits, left_after, wish_of
from central.request.model import DeviceRequest, Policy, Role, Scope, Sharing
from central.search.fit import fit
from central.search.placement import NoFit, Placement
from lading.devices.isolation import IsolationName
from tests.depth import repeats
from tests.fakes.capacities import MODEL, capacity, card, held, mig_card, rdma, request, share, whole

SIZE = 800
OTHER = "NVIDIA A10"
NONE, TOKENS, MPS = IsolationName.NONE, IsolationName.TOKENS, IsolationName.MPS
ON_CARDS: list[tuple[str, ...]] = [(), (), (TOKENS,), (MPS,), (NONE, TOKENS)]
OFFERED = [(), (), (NONE, TOKENS), (TOKENS, NONE), (MPS,)]


@st.composite
def some_card(draw: st.DrawFn, number: int) -> CardCapacity:
    size = draw(st.sampled_from([SIZE, SIZE, 2 * SIZE, 10, 0]))
    model = draw(st.sampled_from([MODEL, MODEL, OTHER]))
    match draw(st.sampled_from(["free", "free", "shared", "shared", "held", "broken", "mig"])):
        case "free":
            return card(number, usable_mib=size, model=model)
        case "shared":
            free = draw(st.integers(0, size))
            core = draw(st.sampled_from([0, 5, 50, 100]))
            isolations = draw(st.sampled_from(ON_CARDS))
            made = card(number, usable_mib=size, free_mib=free, free_core=core, containers=1, model=model)
            return replace(made, isolations=isolations)
        case "held":
            return held(number, usable_mib=size, model=model)
        case "mig":
            return mig_card(number, "1g.10gb", model=model)
        case _:
            return card(number, usable_mib=size, unhealthy="Xid 79", model=model)


@st.composite
def some_capacity(draw: st.DrawFn, name: str) -> NodeCapacity:
    cards = [draw(some_card(number)) for number in range(draw(st.integers(0, 4)))]
    missing = draw(st.sampled_from(["", "", "", "", "reported", "reconciled", "reachable", "booted"]))
    cpu, memory = draw(st.integers(0, 64_000)), draw(st.integers(0, 256_000))
    text = [missing != flag for flag in ("reported", "reconciled", "reachable", "booted")]
    one = capacity(*cards, name=name, reported=text[0], reconciled=text[1], reachable=text[2], rebooted=not text[3])
    isolations = draw(st.sampled_from(OFFERED))
    return replace(one, cpu_milli=cpu, memory_mib=memory, resources_reported=True, isolations=isolations)


some_capacities = st.integers(1, 5).flatmap(lambda count: st.tuples(*[some_capacity(f"n{number}") for number in range(count)]))
some_share = st.one_of(
    st.integers(1, 2 * SIZE + 1).map(lambda mib: share("c", mib)),
    st.integers(1, 100).map(lambda core: share("c", None, core)),
    st.tuples(st.integers(1, SIZE), st.integers(1, 100)).map(lambda both: share("c", *both)),
)
some_whole = st.integers(1, 5).map(lambda count: whole("c", count))
simple_asks = st.builds(
    lambda one, model, isolation: request(one, gpu_model=model, isolation=isolation if one.share else None),
    st.one_of(some_share, some_whole),
    st.sampled_from(["", "", MODEL, OTHER, f"{OTHER}|{MODEL}", "none"]),
    st.sampled_from([None, None, NONE, TOKENS, MPS]),
)


def columns_of(capacities: tuple[NodeCapacity, ...]) -> tuple[Columns, Ints]:
    columns = Columns()
    for one in capacities:
        columns.put(one)
    return columns, np.arange(len(capacities))


def wish(requested: DeviceRequest) -> Wish:
    result = wish_of(requested)
    assert result is not None
    return result


@settings(max_examples=repeats(40, long=1_000))
@given(some_capacities, simple_asks)
def test_columns_give_the_verdicts_of_the_exact_search(capacities: tuple[NodeCapacity, ...], requested: DeviceRequest) -> None:
    columns, rows = columns_of(capacities)
    counted = [REASONS[number] for number in fits(columns, rows, wish(requested)).missing]
    exact = [fit(one, requested, policy=Policy.FRAGMENTATION) for one in capacities]
    assert counted == [one.missing if isinstance(one, NoFit) else None for one in exact]


@settings(max_examples=repeats(40, long=1_000))
@given(some_capacities, simple_asks)
def test_every_choice_leaves_what_the_exact_fit_on_those_cards_leaves(
    capacities: tuple[NodeCapacity, ...], requested: DeviceRequest
) -> None:
    columns, rows = columns_of(capacities)
    result = fits(columns, rows, wish(requested))
    fitting = rows[result.missing == 0]
    made = choices(columns, fitting, result.cards[result.missing == 0], wish(requested))
    after = left_after(columns, fitting, made, np.array([[1000], [2048]]))
    assert after.left[0].tolist() == [capacities[row].cpu_milli - 1000 for row in fitting[made.of]]
    counted = {(int(row), tuple(sorted(free))) for row, free in zip(fitting[made.of], after.free.tolist(), strict=True)}
    exact = set()
    for row in fitting.tolist():
        alone = [(one,) for one in capacities[row].cards] if not wish(requested).cards else [capacities[row].cards]
        for cards in alone:
            placed = fit(replace(capacities[row], cards=cards), requested, policy=Policy.FRAGMENTATION)
            if isinstance(placed, Placement):
                left = [left_of(one, placed.taken.gpus.get(one.gpu.uuid)) for one in capacities[row].cards]
                exact.add((row, tuple(sorted([*left, *[0] * (columns.slots - len(left))]))))
    assert counted == exact


@pytest.mark.parametrize(
    "requested",
    [
        request(whole("c", vfs=1)),
        request(rdma("c")),
        request(whole("c"), whole("d")),
        request(share("c", 10, cards=2)),
        request(share("c", 10, role=Role.INIT), whole("d")),
        request(whole("c", 2), scope=Scope.NUMA),
        request(share("c", 10), sharing=Sharing(namespace="default", affinity="a")),
        DeviceRequest(containers=(whole("c"),), mig_profile="1g.10gb"),
    ],
)
def test_requests_with_more_rules_are_not_counted_by_columns(requested: DeviceRequest) -> None:
    assert wish_of(requested) is None


def test_a_pod_without_devices_fits_and_leaves_the_cards_as_they_are() -> None:
    columns, rows = columns_of((capacity(card(0), held(1)), capacity(name="n2", reported=False), capacity(held(0), name="n3")))
    result = fits(columns, rows, wish(DeviceRequest(containers=())))
    assert (result.missing == 0).tolist() == [True, False, True]
    made = choices(columns, rows[[0, 2]], result.cards[[0, 2]], wish(DeviceRequest(containers=())))
    assert (made.of.tolist(), made.free.tolist()) == ([0, 1], [[1000, 0], [0, 0]])
