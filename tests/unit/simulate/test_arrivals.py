"""Test the order of arrivals: by the seed alone, up to the requested amount, from the workload's own pods."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.arrivals import draw_arrivals, run_order
from tests.unit.simulate.small import NODES, PODS, TRACE, whole


def requested(seed: int, ratio: float) -> int:
    return sum(pod.milli for pod in draw_arrivals(PODS, TRACE.capacity, ratio, seed))


def test_a_seed_says_it_all() -> None:
    assert draw_arrivals(PODS, TRACE.capacity, 3.0, 42) == draw_arrivals(PODS, TRACE.capacity, 3.0, 42)
    assert draw_arrivals(PODS, TRACE.capacity, 3.0, 42) != draw_arrivals(PODS, TRACE.capacity, 3.0, 43)


@given(st.integers(0, 10_000), st.floats(1.5, 6.0))
def test_copies_until_the_ratio(seed: int, ratio: float) -> None:
    arriving = draw_arrivals(PODS, TRACE.capacity, ratio, seed)
    assert not Counter(PODS) - Counter(arriving)
    assert set(arriving) == set(PODS)
    most = max(pod.milli for pod in PODS)
    assert ratio * TRACE.capacity - most < requested(seed, ratio) <= ratio * TRACE.capacity


@given(st.integers(0, 10_000), st.floats(0.1, 1.0))
def test_a_workload_that_asks_for_more_loses_pods(seed: int, ratio: float) -> None:
    arriving = draw_arrivals(PODS, TRACE.capacity, ratio, seed)
    assert not Counter(arriving) - Counter(PODS)
    assert requested(seed, ratio) <= ratio * TRACE.capacity


def test_copies_come_between_the_others() -> None:
    pods = [whole(1, cpu_milli) for cpu_milli in range(1, 101)]
    first = draw_arrivals(pods, 1_000_000, 0.2, 1)[:100]
    assert first != pods
    assert len(set(first)) < 100


def test_every_pod_is_drawn_alike() -> None:
    pods = [whole(1, 1_000), whole(1, 2_000), whole(1, 3_000)]
    drawn = Counter(draw_arrivals(pods, 1_000_000, 9.0, 1))
    assert all(count == pytest.approx(3000, rel=0.1) for count in drawn.values())


def test_the_order_of_nodes_is_of_the_seed() -> None:
    assert run_order(NODES, 1) == run_order(NODES, 1)
    assert {node.name for node in run_order(NODES, 1)} == {node.name for node in NODES}
    assert any(run_order(NODES, seed) != list(NODES) for seed in range(3))
