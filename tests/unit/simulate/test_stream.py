"""Test the stream of pods: by the seed alone, at the offered load, in units of the mean duration."""

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from simulate.stream import LEAST_S, MOST_S, SPANS, Arrival, Departures, Durations, draw_stream
from tests.unit.simulate.small import PODS, TRACE, whole

TIMED = replace(TRACE, lifetimes=tuple(100.0 * (number + 1) for number in range(len(PODS))))
SEEDS = range(200)


def stream(durations: Durations, seed: int = 42, load: float = 0.9) -> list[Arrival]:
    return list(draw_stream(TIMED, Departures(durations=durations, load=load), seed))


@pytest.mark.parametrize("durations", Durations)
def test_a_seed_gives_one_stream(durations: Durations) -> None:
    assert stream(durations) == stream(durations)
    assert stream(durations) != stream(durations, seed=43)


@pytest.mark.parametrize("durations", Durations)
def test_pods_arrive_in_the_order_of_time_until_the_end(durations: Durations) -> None:
    times = [arrival.at for arrival in stream(durations)]
    assert all(a < b for a, b in pairwise([0.0, *times, SPANS[durations].end]))


@pytest.mark.parametrize("durations", Durations)
@pytest.mark.parametrize("load", [0.5, 1.05])
def test_pods_ask_for_the_offered_load(durations: Durations, load: float) -> None:
    """Compare the arriving GPUs times units with the existing ones."""
    requested = [sum(pod.milli * runs for _, pod, runs in stream(durations, seed, load)) for seed in SEEDS]
    assert fmean(requested) / (TIMED.capacity * SPANS[durations].end) == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("durations", Durations)
def test_a_unit_is_the_mean_duration_by_gpus(durations: Durations) -> None:
    drawn = [arrival for seed in SEEDS for arrival in stream(durations, seed)]
    held = sum(pod.milli * runs for _, pod, runs in drawn)
    assert held / sum(pod.milli for _, pod, _ in drawn) == pytest.approx(1.0, rel=0.03)


def test_durations_of_the_trace_are_those_of_the_pod() -> None:
    pods = tuple(whole(1, cpu_milli) for cpu_milli in (1, 2, 3))
    trace = replace(TRACE, pods=pods, lifetimes=(100.0, 200.0, 600.0))
    drawn = draw_stream(trace, Departures(durations=Durations.TRACE, load=1.0), 42)
    runs = {pod.cpu_milli: runs for _, pod, runs in drawn}
    assert runs == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 3: pytest.approx(2.0)}


def test_durations_of_the_trace_have_bounds() -> None:
    pods = tuple(whole(1, cpu_milli) for cpu_milli in (1, 2))
    trace = replace(TRACE, pods=pods, lifetimes=(0.0, 10.0**9))
    drawn = draw_stream(trace, Departures(durations=Durations.TRACE, load=1.0), 42)
    runs = {pod.cpu_milli: runs for _, pod, runs in drawn}
    assert runs[2] / runs[1] == pytest.approx(MOST_S / LEAST_S)


def test_exponential_durations_need_no_times() -> None:
    game = Departures(durations=Durations.EXPONENTIAL, load=0.9)
    assert list(draw_stream(TRACE, game, 42)) == stream(Durations.EXPONENTIAL)
