"""Draw the jobs of a replay with gangs: the pods of a workload, where pods with several GPUs are joined to gangs.

Pods are drawn as in a replay without gangs (simulate/stream.py): at random with replacement, at the times of a Poisson process.
Each belongs to one of four tenants, which want unequal parts. A pod with several GPUs is joined with equal ones to a gang of 2,
4 or 8. A gang of n is kept with a probability of 1/n, so that the joined pods arrive as often as single ones would. A gang
takes at most half of the places for its pods on the empty cluster.

A gang runs for the mean of the durations that its pods would have, so that the offered load is that of single pods.

Tests: tests/unit/simulate/gangs/test_replay.py
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from simulate.gangs.model import Job
from simulate.stream import LEAST_S, MOST_S, Departures, Durations, Span
from simulate.trace import Trace, TraceNode, TracePod

TENANTS: Final[Mapping[str, int]] = {"a": 4, "b": 3, "c": 2, "d": 1}  # tenths of the pods that each tenant starts
SIZES: Final = (2, 4, 8)  # sizes of gangs, with equal probability
# Spans in units. They are shorter than without gangs, because planning for waiting gangs takes most of a replay's time.
SPANS: Final = {Durations.EXPONENTIAL: Span(8.0, 2.0), Durations.TRACE: Span(12.0, 4.0)}
EXPONENTIAL_UNIT_S: Final = 6000.0  # mean duration; close to the mean of the published trace, cut off at 6 h


class Times:
    """Hold the durations of a replay, in seconds."""

    def __init__(self, trace: Trace, game: Departures) -> None:
        self._runs: dict[int, list[float]] = defaultdict(list)  # durations, by requested number of GPUs
        self.unit_s = EXPONENTIAL_UNIT_S
        if game.durations is Durations.TRACE:
            runs = [min(MOST_S, max(LEAST_S, seconds)) for seconds in trace.lifetimes]
            for pod, seconds in zip(trace.pods, runs, strict=True):
                self._runs[pod.gpus].append(seconds)
            held = sum(pod.milli for pod in trace.pods)
            self.unit_s = sum(pod.milli * seconds for pod, seconds in zip(trace.pods, runs, strict=True)) / held
        span = SPANS[game.durations]
        self.end_s, self.warm_up_s = span.end * self.unit_s, span.warm_up * self.unit_s

    def draw(self, pod: TracePod, members: int, chance: random.Random) -> float:
        """Draw the run time of a job of `members` such pods, in seconds."""
        known = self._runs.get(pod.gpus)
        return fmean(chance.choice(known) if known else chance.expovariate(1 / self.unit_s) for _ in range(members))


def draw_jobs(trace: Trace, game: Departures, times: Times, seed: int) -> Iterator[Job]:
    """Yield the jobs in the order of their arrival."""
    chance = random.Random(f"jobs {seed}")  # noqa: S311  (a replay, nothing secret)
    kind_of = {pod: kind for kind, pod in enumerate(dict.fromkeys(trace.pods))}
    most = {pod: most_at_once(pod, trace.nodes) // 2 for pod in kind_of if pod.whole > 1}
    rate, number, at = trace.pods_for(game.load) / times.unit_s, 0, 0.0
    while (at := at + chance.expovariate(rate)) < times.end_s:
        pod, (tenant,) = chance.choice(trace.pods), chance.choices(list(TENANTS), list(TENANTS.values()))
        members = max(1, min(chance.choice(SIZES), most[pod])) if pod in most else 1
        if chance.random() * members < 1:
            number += 1
            yield Job(number, at, kind_of[pod], pod, members, times.draw(pod, members, chance), tenant)


def most_at_once(pod: TracePod, nodes: Sequence[TraceNode]) -> int:
    """Return the number of such pods, with whole cards, that fit on the empty nodes."""
    suited = (node for node in nodes if not pod.models or node.model in pod.models)
    return sum(
        min(
            len(node.cards) // pod.whole,
            node.cpu_milli // max(1, pod.cpu_milli),
            node.memory_mib // max(1, pod.memory_mib),
        )
        for node in suited
    )
