"""Limit the bytes of held messages over all connections of the process.

A call reserves memory for its whole message before its client gets credit for more than the stream's first window. So a message
with a reservation can be received completely: two half messages never wait for each other. The runtime chooses that first
window, and it may be as large as a message. Bytes that arrive before their memory is reserved are *early*: all calls together
may have a quarter of the budget of them, and each call a default window besides.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from lading.http2.frames import DEFAULT_WINDOW

# A message that is being decided exists as received, joined, parsed, and as it will be sent.
COPIES: Final = 4


class HoldBudget:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._room = limit
        self._early = limit // COPIES
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def cost(self, size: int) -> int:
        """Return how much to reserve for a message of this size. One message may always be held."""
        return min(size * COPIES, self._limit)

    def came_early(self, size: int, of_call: int) -> bool:
        """Count early bytes. Return whether they may be kept. `of_call`: all early bytes of the same call."""
        self._early -= size
        return self._early >= 0 or of_call <= DEFAULT_WINDOW

    def no_longer_early(self, size: int) -> None:
        self._early += size

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """Reserve memory. Return True if it is reserved now; otherwise `granted` is called later. `size` is at most the
        limit."""
        if not self._waiting and size <= self._room:
            self._room -= size
            return True
        self._waiting.append((size, granted))
        return False

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Cancel a reservation that was not granted yet: its call ended."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not granted)
        self._serve()

    def release(self, size: int) -> None:
        self._room += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._room:
            size, granted = self._waiting.popleft()
            self._room -= size
            granted()
