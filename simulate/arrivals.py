"""Draw the order in which pods arrive, by the protocol of *Beware of Fragmentation* (USENIX ATC 2023).

All pods of the workload arrive, and copies drawn at random with replacement, in shuffled order. Copies are added until the next
one would raise the sum of requests above the ratio of the cluster's GPU capacity. If the workload already requests more, pods
drawn at random are left out instead. The same seed gives the same order, for every policy.
"""

import random
from collections.abc import Sequence

from simulate.trace import TraceNode, TracePod


def draw_arrivals(pods: Sequence[TracePod], capacity: int, ratio: float, seed: int) -> list[TracePod]:
    """Return the arriving pods, in random order. Their requests add up to at most `ratio` of `capacity`, in milli of cards:
    pods are left out, or repeated, at random. At least one of `pods` must request a GPU."""
    chance = random.Random(seed)  # noqa: S311  (a replay, nothing secret)
    arriving, requested, limit = list(pods), sum(pod.milli for pod in pods), ratio * capacity
    if requested > limit:
        while requested > limit:
            number = chance.randrange(len(arriving))
            arriving[number], arriving[-1] = arriving[-1], arriving[number]
            requested -= arriving.pop().milli
    else:
        while requested + (pod := chance.choice(pods)).milli <= limit:
            requested += pod.milli
            arriving.append(pod)
    chance.shuffle(arriving)
    return arriving


def run_order(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """Return the nodes in the order by which baselines break ties: random, and fixed during a run."""
    ordered = list(nodes)
    random.Random(f"nodes {seed}").shuffle(ordered)  # noqa: S311
    return ordered
