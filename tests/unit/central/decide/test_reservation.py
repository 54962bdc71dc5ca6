"""Test when a reserved node is abandoned, and how long the next node is tried."""

import random
import statistics
from collections.abc import Callable

import pytest

from central.decide.reservation import PATIENCES, Attempts, factor

LEAST_S = 10.0


def test_the_factors_are_those_of_the_paper() -> None:
    assert [factor(reservation) for reservation in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


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
    reservation = Attempts(patience_s=LEAST_S / PATIENCES).begin(0.0)
    over = []
    for now in range(100):
        reservation.observe(4 - sum(end <= now for end in ends), now)
        over.append(reservation.is_over(now))
    assert (over.index(True) if True in over else None) == over_at


def test_more_pods_in_the_way_than_before_are_no_progress() -> None:
    reservation = Attempts(patience_s=LEAST_S / PATIENCES).begin(0.0)
    for now in range(20):
        reservation.observe(2 + now % 2, now)
    assert reservation.is_over(20.0)


@pytest.mark.parametrize(
    ("draw", "best_s"),
    [
        pytest.param(lambda _: 2.0, 2.0, id="each node becomes free at once"),
        pytest.param(lambda _: 700.0, 700.0, id="all become free slowly"),
        pytest.param(lambda dice: 5.0 if dice.random() < 0.05 else 1e9, 20 * LEAST_S, id="one node in twenty does"),
    ],
)
def test_room_becomes_complete_whatever_the_nodes_are_like(draw: Callable[[random.Random], float], best_s: float) -> None:
    """Let one pod be in the way on each node; `draw` returns the time until it ends. `best_s` is the mean wait if these times
    were known."""
    waits = []
    for seed in range(200):
        dice, attempts, now = random.Random(seed), Attempts(patience_s=LEAST_S / PATIENCES), 0.0  # noqa: S311
        while (ends := draw(dice)) > (reservation := attempts.begin(now)).least_s:
            now += reservation.least_s
            attempts.abandon(f"n{attempts.count}", now)
        waits.append(now + ends)
    assert statistics.median(waits) <= 14 * best_s
    assert max(waits) <= 30 * best_s
