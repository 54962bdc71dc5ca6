"""Judge whether room that is kept on a node becomes complete, or another node is to be tried.

Central does not know when pods end. Room is complete once no pod is in its way any more, and it may be on a node where none of
these ends. So the node is left if no pod in the way ended for a time; what was kept there is free for others then.

The time is PATIENCES times the patience at least, and as long as pods ended there before: where all pods run for ten times the
patience, to leave after one patience loses what was kept again and again, and pods that need several GPUs wait for nearly as
long as without any room. It is longer on some of the nodes that are tried later, by the factors 1, 1, 2, 1, 1, 2, 4, …: whether
most nodes never become free or all of them do so slowly, the wait is longer than with the best time by a logarithmic factor
only. Source: Luby, Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993.
"""

import math
from dataclasses import dataclass, field
from typing import Final

PATIENCES: Final = 20
SEEN_S: Final = 5.0  # after which kube-scheduler has seen that a node has room


@dataclass(slots=True, kw_only=True)
class Stay:
    """The time during which room is kept on one node."""

    least_s: float  # without an end of a pod in the way, until the node is left
    since: float
    fewer_at: float
    in_the_way: float = math.inf  # pods: the fewest so far

    def look(self, in_the_way: int, now: float) -> None:
        """Record how many pods have to end until the room is complete."""
        if in_the_way < self.in_the_way:
            self.in_the_way, self.fewer_at = in_the_way, now

    def is_over(self, now: float) -> bool:
        """Return whether to try another node."""
        return self.in_the_way > 0 and now - self.fewer_at > max(self.least_s, self.fewer_at - self.since)

    def is_seen(self, now: float) -> bool:
        """Return whether kube-scheduler knows that no pod is in the way: it names the node if it lets the pod go there."""
        return self.in_the_way == 0 and now - self.fewer_at > SEEN_S


@dataclass(slots=True, kw_only=True)
class Tries:
    """The nodes on which room was kept for one pod or gang, and that it left."""

    patience_s: float
    left: dict[str, float] = field(default_factory=dict)  # until when each may not be tried again
    stays: int = 0

    def begin(self, now: float) -> Stay:
        return Stay(least_s=PATIENCES * self.patience_s * factor(self.stays + 1), since=now, fewer_at=now)

    def leave(self, node: str, until: float) -> None:
        self.stays += 1
        self.left[node] = until


def factor(stay: int) -> int:
    """Return by how much the stay with this number, from 1 on, is longer than the shortest."""
    while stay & (stay + 1):
        stay -= (1 << (stay.bit_length() - 1)) - 1
    return (stay + 1) // 2
