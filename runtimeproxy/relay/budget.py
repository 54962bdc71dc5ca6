"""Limit the bytes of held messages over all connections of the process.

A call reserves memory for its whole message before its client gets credit for more than the stream's first window. So a message
with a reservation can be received completely: two half messages never wait for each other. The runtime chooses that first
window, and it may be as large as a message. Bytes that arrive before their memory is reserved are *early*. All calls together
may have early bytes for a quarter of the budget, and each call may always have a default window of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from lading.http2.frames import DEFAULT_WINDOW

# A held message exists in four forms during the decision: received, joined, parsed, and changed for sending.
COPIES: Final = 4


class HoldBudget:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._early = limit // COPIES
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def cost(self, size: int) -> int:
        """Return the bytes to reserve for a message of this size: at most the limit, so that one message can always be held."""
        return min(size * COPIES, self._limit)

    def came_early(self, size: int, of_call: int) -> bool:
        """Count early bytes. Return whether the relay may keep them. `of_call`: all early bytes of the same call."""
        self._early -= size
        return self._early >= 0 or of_call <= DEFAULT_WINDOW

    def allow_early(self, size: int) -> None:
        """Let other calls keep so many early bytes again."""
        self._early += size

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """Reserve `size` bytes, at most the limit. Return True if reserved now; otherwise `granted` is called later."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return True
        self._waiting.append((size, granted))
        return False

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Cancel a reservation that was not granted yet: its call ended."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not granted)
        self._serve()

    def release(self, size: int) -> None:
        self._free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, granted = self._waiting.popleft()
            self._free -= size
            granted()
