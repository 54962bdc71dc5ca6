"""When a node is left on which room is kept, and for how long the next one is tried."""

import random
import statistics
from collections.abc import Callable

import pytest

from central.scheduling.kept_room import PATIENCES, Tries, factor

LEAST_S = 10.0


def test_the_factors_are_those_of_the_paper() -> None:
    assert [factor(stay) for stay in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("ends", "over_at"),
    [
        pytest.param([], 11, id="no pod ends"),
        pytest.param([9], 20, id="one ended early"),
        pytest.param([9, 18, 27], 55, id="it may last as long again as pods ended before"),
        pytest.param([9, 18, 27, 36], None, id="complete"),
    ],
)
def test_a_node_is_left_once_no_pod_ended_for_long(ends: list[int], over_at: int | None) -> None:
    stay = Tries(patience_s=LEAST_S / PATIENCES).begin(0.0)
    over = []
    for now in range(100):
        stay.look(4 - sum(end <= now for end in ends), now)
        over.append(stay.is_over(now))
    assert (over.index(True) if True in over else None) == over_at


def test_more_pods_in_the_way_than_before_are_no_progress() -> None:
    stay = Tries(patience_s=LEAST_S / PATIENCES).begin(0.0)
    for now in range(20):
        stay.look(2 + now % 2, now)
    assert stay.is_over(20.0)


@pytest.mark.parametrize(
    ("draw", "best_s"),
    [
        pytest.param(lambda _: 2.0, 2.0, id="each node becomes free at once"),
        pytest.param(lambda _: 700.0, 700.0, id="all become free slowly"),
        pytest.param(lambda dice: 5.0 if dice.random() < 0.05 else 1e9, 20 * LEAST_S, id="one node in twenty does"),
    ],
)
def test_room_becomes_complete_whatever_the_nodes_are_like(draw: Callable[[random.Random], float], best_s: float) -> None:
    """One pod is in the way on each node; `draw` says after how long it ends. `best_s`: what the wait would be on average if
    that were known."""
    waits = []
    for seed in range(200):
        dice, tries, now = random.Random(seed), Tries(patience_s=LEAST_S / PATIENCES), 0.0  # noqa: S311
        while (ends := draw(dice)) > (stay := tries.begin(now)).least_s:
            now += stay.least_s
            tries.leave(f"n{tries.stays}", now)
        waits.append(now + ends)
    assert statistics.median(waits) <= 14 * best_s
    assert max(waits) <= 30 * best_s
