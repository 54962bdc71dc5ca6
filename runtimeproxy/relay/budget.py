"""How many bytes of held messages there may be in all, over every connection of the process.

A call reserves its whole message before its client is given credit for more than the stream's first window. So whatever was
reserved can be received to its end: two half messages never wait for each other's room.
"""

from collections import deque
from collections.abc import Callable


class HoldBudget:
    def __init__(self, limit: int) -> None:
        self._room = limit
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """True: reserved. False: `granted` is called once it is. `size` is at most the limit."""
        if not self._waiting and size <= self._room:
            self._room -= size
            return True
        self._waiting.append((size, granted))
        return False

    def withdraw(self, granted: Callable[[], None]) -> None:
        """The call ended before its turn came."""
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
