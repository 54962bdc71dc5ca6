"""Compute how long to wait after a failure: twice as long each time, up to a limit, with jitter, so that clients do not retry
at the same time.
"""

import random
from collections.abc import Callable
from typing import Final

FIRST_S: Final = 0.5  # a server that restarts is back in seconds
LIMIT_S: Final = 15.0  # only two replicas and a reporter on each node retry; their view of the cluster gets stale meanwhile


class Backoff:
    """Count failures, and compute how long to wait. `chance` returns a number from 0 to 1."""

    def __init__(
        self, *, first_s: float = FIRST_S, limit_s: float = LIMIT_S, chance: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._chance = chance
        self.failures = 0  # failures since the last success

    def failed(self, *, at_least_s: float = 0.0) -> float:
        """Count one failure. Return the seconds to wait: half to all of the doubled time, but at least `at_least_s`."""
        whole = min(self._limit_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return max(at_least_s, whole * (1 + self._chance()) / 2)

    def succeeded(self) -> None:
        self.failures = 0
