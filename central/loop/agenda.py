"""Keep the time at which each of many objects is handled next, and return only the objects that are due.

A key has one time: the last time that was put. A key costs as much as a heap entry, whatever the number of other keys. Pure;
the caller has the clock.
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
        """Set the time of the key. An infinite time removes the key."""
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
        """Remove and return the keys that are due at `now`, the earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                due.append(key)
        return due
