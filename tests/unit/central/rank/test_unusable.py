"""Test which part of the free GPUs an expected pod could not use: examples of the paper, and the same card by card."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.ledger.model import NodeCapacity
from central.rank.columns import FULL, Columns, left_of
from central.rank.unusable import read_free, unusable_milli
from central.rank.workload import PodKind
from central.request.model import CpuMemory
from tests.depth import repeats
from tests.fakes.capacities import CARD_MIB, MODEL, capacity, card, held, mig_card
from tests.unit.central.rank.test_vectors import OTHER, SIZE, columns_of, some_capacities

QUARTER = CARD_MIB // 4


def unusable(columns: Columns, kind: PodKind) -> int:
    return unusable_milli(read_free(columns), kind, columns.models_of(kind.models) if kind.models else None)


@pytest.mark.parametrize(
    ("kind", "milli"),
    [
        (PodKind(core_percent=50), 250),  # the quarter is too small for it
        *((PodKind(core_percent=25), 0), (PodKind(memory_mib=QUARTER), 0), (PodKind(memory_mib=QUARTER + 1), 250)),
        *((PodKind(gpus=1), 250), (PodKind(gpus=2), 250)),
        (PodKind(gpus=3), 2250),  # there are two
        (PodKind(gpus=1, models=(OTHER,)), 2250),
        (PodKind(gpus=1, models=(MODEL, OTHER)), 250),
        (PodKind(gpus=1, cpu_memory=CpuMemory(cpu_milli=8001)), 2250),
        (PodKind(gpus=1, cpu_memory=CpuMemory(memory_mib=1001)), 2250),
        (PodKind(cpu_memory=CpuMemory(cpu_milli=8001)), 0),  # it asks for no GPU
    ],
)
def test_the_unusable_milli_of_two_whole_cards_and_a_quarter(kind: PodKind, milli: int) -> None:
    cards = card(0), card(1), card(2, free_mib=QUARTER, free_core=25, containers=1), held(3), mig_card(4, "1g.10gb")
    one = capacity(*cards, card(5, unhealthy="Xid 79"))
    columns, _ = columns_of((replace(one, cpu_milli=8000, memory_mib=1000, resources_reported=True),))
    assert read_free(columns).total_milli == 2250
    assert unusable(columns, kind) == milli


amounts = st.fixed_dictionaries({}, optional={"memory_mib": st.integers(1, 2 * SIZE), "core_percent": st.integers(1, 100)})
kinds = st.builds(
    lambda what, models, cpu_milli: PodKind(models=models, cpu_memory=CpuMemory(cpu_milli=cpu_milli), **what),
    st.one_of(st.integers(1, 4).map(lambda gpus: {"gpus": gpus}), amounts),
    st.sampled_from([(), (MODEL,), (OTHER,), (MODEL, OTHER)]),
    st.integers(0, 64_000),
)


@settings(max_examples=repeats(60, long=600))
@given(some_capacities, kinds)
def test_by_a_check_each_card(capacities: tuple[NodeCapacity, ...], kind: PodKind) -> None:
    columns, _ = columns_of(capacities)
    assert unusable(columns, kind) == (0 if kind.cpu_only else sum(_lost(one, kind) for one in capacities))


def _lost(one: NodeCapacity, kind: PodKind) -> int:
    if not one.serving:
        return 0
    suits = [card for card in one.cards if not kind.models or card.gpu.model in kind.models]
    if one.cpu_milli < kind.cpu_memory.cpu_milli:
        suits = []
    if kind.gpus:
        whole = [card for card in suits if left_of(card) == FULL]
        usable = whole if len(whole) >= kind.gpus else []
    else:
        core = kind.core_percent or 0
        usable = [
            card
            for card in suits
            if card.usable
            and (need := kind.memory_mib if kind.memory_mib is not None else card.gpu.usable_mib * core // 100) >= 1
            and card.free_mib >= need
            and card.free_core >= core
        ]
    return sum(map(left_of, one.cards)) - sum(map(left_of, usable))
