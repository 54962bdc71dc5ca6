"""The order in which pods arrive, by the protocol of *Beware of Fragmentation* (USENIX ATC 2023).

The workload's pods; copies of them drawn at random with replacement, until the next one would bring what all of them ask for
above the ratio of the cluster's GPU capacity; shuffled. A workload that asks for more than that loses pods drawn at random
instead. The same seed gives the same order, for every policy.
"""

import random
from collections.abc import Sequence

from simulate.trace import TraceNode, TracePod


def draw_arrivals(pods: Sequence[TracePod], capacity: int, ratio: float, seed: int) -> list[TracePod]:
    """Return the pods that arrive, in random order. They ask together for at most `ratio` of the capacity, which is in milli of
    cards: pods are left out, or drawn again, at random. At least one of `pods` must ask for a GPU."""
    chance = random.Random(seed)  # noqa: S311  (a replay, nothing secret)
    arriving, asked, limit = list(pods), sum(pod.milli for pod in pods), ratio * capacity
    if asked > limit:
        while asked > limit:
            number = chance.randrange(len(arriving))
            arriving[number], arriving[-1] = arriving[-1], arriving[number]
            asked -= arriving.pop().milli
    else:
        while asked + (pod := chance.choice(pods)).milli <= limit:
            asked += pod.milli
            arriving.append(pod)
    chance.shuffle(arriving)
    return arriving


def run_order(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """Return the nodes in the order by which baselines break ties: random, and the same during a whole run."""
    ordered = list(nodes)
    random.Random(f"nodes {seed}").shuffle(ordered)  # noqa: S311
    return ordered
