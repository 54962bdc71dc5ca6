"""Decide whether to wait for devices on a reserved node, or to abandon the node and try another.

Central does not know when pods end. A reservation is complete when no pod is in its way, but the pods in the way may never end.
So the node is abandoned if no pod in the way ended for a time; the devices reserved there are then free for other pods.

The time is at least PATIENCES times the patience, and at least the time in which pods in the way ended there before. A shorter
time is worse if all pods run for ten times the patience. Each reservation is then lost after one patience, and pods with
several GPUs wait nearly as long as without reservations. Some later attempts get a longer time, by the factors 1, 1, 2, 1, 1,
2, 4, …. So the wait exceeds the best possible wait by a logarithmic factor only, whether most nodes never become free or all
become free slowly. Source: Luby, Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993.
"""

import math
from dataclasses import dataclass, field
from typing import Final

PATIENCES: Final = 20
OBSERVED_S: Final = 5.0  # seconds until kube-scheduler has observed that a node has free devices


@dataclass(slots=True, kw_only=True)
class NodeReservation:
    least_s: float  # minimum seconds without an end of a pod in the way, until the node is abandoned
    since: float
    fewer_at: float
    in_the_way: float = math.inf  # smallest number of pods in the way so far

    def observe(self, in_the_way: int, now: float) -> None:
        """Record the number of pods that have to end until the reservation is complete."""
        if in_the_way < self.in_the_way:
            self.in_the_way, self.fewer_at = in_the_way, now

    def is_over(self, now: float) -> bool:
        """Return whether to abandon the node and try another."""
        return self.in_the_way > 0 and now - self.fewer_at > max(self.least_s, self.fewer_at - self.since)

    def is_observed(self, now: float) -> bool:
        """Return whether kube-scheduler has observed that no pod is in the way. It then names the node if it allows the pod
        there."""
        return self.in_the_way == 0 and now - self.fewer_at > OBSERVED_S


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Keep the nodes that one pod or gang reserved and abandoned."""

    patience_s: float
    abandoned: dict[str, float] = field(default_factory=dict)  # end of each node's exclusion, by node
    count: int = 0

    def begin(self, now: float) -> NodeReservation:
        return NodeReservation(least_s=PATIENCES * self.patience_s * factor(self.count + 1), since=now, fewer_at=now)

    def abandon(self, node: str, until: float) -> None:
        self.count += 1
        self.abandoned[node] = until


def factor(attempt: int) -> int:
    """Return the factor by which the attempt with this number (from 1) is longer than the shortest: 1, 1, 2, 1, 1, 2, 4, …."""
    while attempt & (attempt + 1):
        attempt -= (1 << (attempt.bit_length() - 1)) - 1
    return (attempt + 1) // 2
