"""Test the weight of pods for which few places are left."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from central.rank.scarcity import LEAST, MAX_GROUPED, MOST, RAREST, PodGroupKind, WorkloadGroups, differ
from central.rank.workload import PodKind, workload_of
from central.request.model import NO_CPU_MEMORY, CpuMemory

EIGHT, FEW = PodGroupKind(8), PodGroupKind(8, ("A",))
WORKLOAD = workload_of({PodKind(gpus=8): 1.0, PodKind(gpus=1): 92.0})  # eight of a hundred cards are asked for by eights
LARGE = CpuMemory(120_000, 700_000)


@dataclass(frozen=True)
class Left:
    """Hold the free cards of a cluster by model, and the free places by group."""

    cards: float
    most: int = 0
    of_models: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    fewer: Mapping[PodGroupKind, int] = field(default_factory=dict)

    def free_milli(self, models: tuple[str, ...] = ()) -> int:
        return int(1000 * (self.of_models[models] if models else self.cards))

    def places(self, gpus: int, models: tuple[str, ...], requests: CpuMemory) -> int:
        return self.fewer.get(PodGroupKind(gpus, models, requests), self.most)


@pytest.mark.parametrize(
    ("places", "free", "expected"),
    [
        (1000, 800, LEAST),  # eight are needed
        (8, 800, 2.0 * 8.5 / 8),
        (17, 800, 1.0),
        (1, 800, MOST),
        (0, 800, MOST),
        (1, 0, 1.0),  # nothing is left, so that none is needed: as if half a one were
    ],
)
def test_the_fewer_places_the_more_each_counts(places: int, free: int, expected: float) -> None:
    assert WorkloadGroups(WORKLOAD).weigh(Left(free, places))[EIGHT] == pytest.approx(expected, rel=1e-3)


def test_groups_of_one_number_share_its_least() -> None:
    workload = workload_of({PodKind(gpus=8): 3.0, PodKind(gpus=8, models=("A",)): 1.0, PodKind(core_percent=50): 50.0})
    factors = WorkloadGroups(workload).weigh(Left(1000, 1000))
    assert factors == {EIGHT: pytest.approx(LEAST * 0.75), FEW: pytest.approx(LEAST * 0.25), PodGroupKind(1): 1.0}


def test_pods_that_only_few_nodes_can_take_count_by_the_places_there() -> None:
    workload = workload_of({PodKind(gpus=8): 9.0, PodKind(gpus=8, cpu_memory=LARGE): 1.0, PodKind(gpus=1): 8.0})
    rare = PodGroupKind(8, cpu_memory=LARGE)
    factors = WorkloadGroups(workload).weigh(Left(88, 100, fewer={rare: 1}))
    assert factors == {EIGHT: pytest.approx(LEAST * 0.9), rare: pytest.approx(2.0 * 1.5, rel=1e-3), PodGroupKind(1): 1.0}


def test_only_the_most_frequent_kinds_are_distinguished_by_what_else_they_ask_for() -> None:
    kinds = {PodKind(gpus=2, cpu_memory=CpuMemory(1000 * number, 0)): 1000.0 - number for number in range(1, MAX_GROUPED + 9)}
    groups = WorkloadGroups(workload_of(kinds)).of_kind
    assert groups[:MAX_GROUPED] == [
        PodGroupKind(2, cpu_memory=CpuMemory(1000 * number, 0)) for number in range(1, MAX_GROUPED + 1)
    ]
    assert groups[MAX_GROUPED:] == [PodGroupKind(2, cpu_memory=NO_CPU_MEMORY)] * 8


@pytest.mark.parametrize(("of_model", "expected"), [(100.0, 1.0), (25.0, 4.0), (0.0, RAREST), (1.5, RAREST)])
def test_pods_of_one_card_count_by_what_is_free_of_their_models(of_model: float, expected: float) -> None:
    workload = workload_of({PodKind(gpus=1, models=("A",)): 1.0, PodKind(core_percent=50, models=("A",)): 1.0, PodKind(): 1.0})
    factors = WorkloadGroups(workload).weigh(Left(100, of_models={("A",): of_model}))
    assert factors == {PodGroupKind(1, ("A",)): pytest.approx(expected), PodGroupKind(1): 1.0}


def test_where_nothing_is_free_no_model_is_scarcer_than_others() -> None:
    workload = workload_of({PodKind(gpus=1, models=("A",)): 1.0})
    assert WorkloadGroups(workload).weigh(Left(0, of_models={("A",): 0.0})) == {PodGroupKind(1, ("A",)): 1.0}


def test_separate_is_more_than_twice_or_less_than_half_of_it() -> None:
    assert not differ({EIGHT: 1.0, FEW: 0.5}, {EIGHT: 1.9, FEW: 0.3})
    assert differ({EIGHT: 1.0, FEW: 0.5}, {EIGHT: 1.0, FEW: 1.1})
    assert differ({EIGHT: 1.0, FEW: 1.1}, {EIGHT: 1.0, FEW: 0.5})
