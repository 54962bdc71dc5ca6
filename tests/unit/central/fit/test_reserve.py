"""How much room for several cards at once counts."""

import pytest

from central.fit.reserve import LEAST, MOST, Group, differ, weigh_groups
from central.fit.workload import PodKind, Workload, workload_of

EIGHT, FEW = Group(8), Group(8, ("A",))
WORKLOAD = workload_of({PodKind(gpus=8): 1.0, PodKind(gpus=1): 92.0})  # eight of a hundred cards are asked for by eights


def factor(places: int, free: int, workload: Workload = WORKLOAD, group: Group = EIGHT) -> float:
    return weigh_groups(workload, free * 1000, lambda group: places)[group]


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
    assert factor(places, free) == pytest.approx(expected, rel=1e-3)


def test_groups_of_one_number_share_its_least() -> None:
    workload = workload_of({PodKind(gpus=8): 3.0, PodKind(gpus=8, models=("A",)): 1.0, PodKind(core_percent=50): 50.0})
    factors = weigh_groups(workload, 1000, lambda group: 1000)
    assert factors == {EIGHT: pytest.approx(LEAST * 0.75), FEW: pytest.approx(LEAST * 0.25)}


def test_without_pods_that_ask_for_several_there_is_nothing_to_weigh() -> None:
    assert weigh_groups(workload_of({PodKind(gpus=1): 1.0, PodKind(): 1.0}), 1000, lambda group: 1) == {}


def test_apart_is_more_than_twice_or_less_than_half_of_it() -> None:
    assert not differ({EIGHT: 1.0, FEW: 0.5}, {EIGHT: 1.9, FEW: 0.3})
    assert differ({EIGHT: 1.0, FEW: 0.5}, {EIGHT: 1.0, FEW: 1.1})
    assert differ({EIGHT: 1.0, FEW: 1.1}, {EIGHT: 1.0, FEW: 0.5})
