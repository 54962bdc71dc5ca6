"""Draw the pods of a replay with departures: the time of each arrival, and the duration of each pod.

Pods are drawn from the workload at random with replacement. They arrive by a Poisson process at an *offered load*: the GPUs
that the pods would hold on average if none had to wait, as a part of all GPUs. Durations are exponential with one mean for all
pods, or those of the trace, each between LEAST_S and MOST_S. Times are in *units*: the mean duration, weighted by the requested
GPUs. The same seed gives the same stream for every policy.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from simulate.trace import Trace, TracePod

LEAST_S: Final = 30.0
MOST_S: Final = 6 * 3600.0


class Durations(StrEnum):
    EXPONENTIAL = "exponential"
    TRACE = "trace"


class Span(NamedTuple):
    """Hold the length of a replay, in units."""

    end: float
    warm_up: float  # initial time without figures


# A trace needs a longer warm-up: its durations differ by orders of magnitude, and pods of all durations must have ended.
SPANS: Final = {Durations.EXPONENTIAL: Span(12.0, 3.0), Durations.TRACE: Span(16.0, 6.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Define how pods arrive and end."""

    durations: Durations
    load: float  # offered load, as a part of the GPUs; 1.0: all of them
    patience: float = 0.0  # units of waiting until a node is reserved for a pod; 0: never


class Arrival(NamedTuple):
    at: float
    pod: TracePod
    runs: float


def draw_stream(trace: Trace, game: Departures, seed: int) -> Iterator[Arrival]:
    """Yield the arriving pods in the order of time. Durations from the trace require a trace with lifetimes."""
    chance = random.Random(f"stream {seed}")  # noqa: S311  (a replay, nothing secret)
    pods, held = trace.pods, sum(pod.milli for pod in trace.pods)
    rate = trace.pods_for(game.load)  # pods per unit of time
    runs = [min(MOST_S, max(LEAST_S, seconds)) for seconds in trace.lifetimes]
    unit_s = sum(pod.milli * seconds for pod, seconds in zip(pods, runs, strict=True)) / held if runs else 1.0
    at = chance.expovariate(rate)
    while at < SPANS[game.durations].end:
        number = chance.randrange(len(pods))
        exponential = chance.expovariate(1.0)
        yield Arrival(at, pods[number], exponential if game.durations is Durations.EXPONENTIAL else runs[number] / unit_s)
        at += chance.expovariate(rate)
