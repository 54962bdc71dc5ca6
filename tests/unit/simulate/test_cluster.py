"""Test the referee: where a pod fits, and that no placement takes missing devices."""

from collections.abc import Sequence

import numpy as np
import pytest

from simulate.cluster import Cluster, OverCapacityError
from simulate.trace import TraceNode, TracePod
from tests.unit.simulate.small import share, whole

NODE = TraceNode(name="n", cpu_milli=8_000, memory_mib=16_384, gpus=2, model="T4")


def fits(*pods: TracePod, after: Sequence[tuple[int, list[int]]] = ()) -> list[bool]:
    cluster = Cluster([NODE], pods)
    for kind, cards in after:
        cluster.take(0, kind, cards)
    return [bool(one) for one in cluster.fits[:, 0]]


def test_each_resource_has_to_suffice() -> None:
    pods = whole(2), whole(3), whole(1, 8_001), share(10, 1_000, "A10"), share(10, 1_000, "A10", "T4")
    assert fits(*pods) == [True, False, False, False, True]
    memory = TracePod(memory_mib=16_384), TracePod(memory_mib=16_385)
    assert fits(*memory) == [True, False]


def test_a_share_needs_one_card_with_room() -> None:
    pods = share(600, 0), share(400, 0), share(410, 0), whole(1, 0)
    assert fits(*pods, after=[(0, [0]), (0, [1])]) == [False, True, False, False]
    assert fits(*pods, after=[(0, [1])]) == [True, True, True, True]


def test_placed_pods_take_cpu_memory_and_cards() -> None:
    cluster = Cluster([NODE], [share(300, 1_000), whole(1, 2_000), TracePod(cpu_milli=500, memory_mib=1)])
    cluster.take(0, 0, [1])
    cluster.take(0, 1, [0])
    cluster.take(0, 2, [])
    assert (cluster.cpu_milli[0], cluster.memory_mib[0]) == (4_500, 16_384 - 2_048 - 4_096 - 1)
    assert cluster.free[0].tolist() == [0, 700]
    assert (cluster.allocated, cluster.capacity) == (1_300, 2_000)
    assert cluster.free_cards(0, 0) == [1]
    assert cluster.free_cards(0, 1) == []


@pytest.mark.parametrize(
    ("pod", "cards"),
    [
        *((whole(1), []), (whole(1), [0, 1]), (whole(2), [0, 0]), (whole(2), [0]), (share(100), [0, 1])),
        *((whole(1, 9_000), [0]), (TracePod(memory_mib=20_000), []), (TracePod(), [0]), (share(100, 1, "A10"), [0])),
    ],
)
def test_over_capacity(pod: TracePod, cards: list[int]) -> None:
    cluster = Cluster([NODE], [pod])
    with pytest.raises(OverCapacityError):
        cluster.take(0, 0, cards)


def test_a_card_that_is_full_or_not_there() -> None:
    cluster = Cluster([NODE, TraceNode(name="m", cpu_milli=8_000, memory_mib=16_384, gpus=1, model="T4")], [share(600, 0)])
    cluster.take(0, 0, [0])
    for node, card in ((0, 0), (1, 1)):
        with pytest.raises(OverCapacityError):
            cluster.take(node, 0, [card])
    assert np.count_nonzero(cluster.fits) == 2
