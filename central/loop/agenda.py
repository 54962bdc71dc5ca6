"""Keep when each of many objects is to be handled next, so that only those are handled whose time has come.

It takes keys with times, and returns the keys that are due. A key has one time: the last one that was put. The cost of a key is
that of a heap, whatever the number of the others. Pure; the clock is its caller's.
"""

import math
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # an entry counts while `_at` has the same time for its key
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: K, at: float) -> None:
        """Set the time of the key; infinite: none."""
        if at == math.inf:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, next(self._numbers), key) for key, at in self._at.items()]
            heapify(self._heap)

    def drop(self, key: K) -> None:
        self.put(key, math.inf)

    def take_due(self, now: float) -> list[K]:
        """Return the keys whose time has come, the first ones first. They have no time any more."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                due.append(key)
        return due
