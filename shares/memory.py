"""Count the device memory that the processes of one container use of one card, in bytes. Never more than the limit is allowed.

The amounts are kept by connection: a process that ends gives back what it had, however it ended. One that only lost its
connection holds its memory still: its amount stays until it is back, or has ended.
"""

from collections.abc import Hashable


class Memory:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[Hashable, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self._held.values())

    def add(self, process: Hashable, amount: int, *, held: bool) -> bool:
        """Count an amount, and return whether it may be allocated. `held`: it is allocated already, and counts in any case."""
        if not held and amount > self.limit_bytes - self.used_bytes:
            return False
        self._held[process] = self._held.get(process, 0) + amount
        return True

    def subtract(self, process: Hashable, amount: int) -> None:
        """Count less; a process cannot give back more than it has."""
        self._held[process] = max(0, self._held.get(process, 0) - amount)

    def gone(self, process: Hashable) -> None:
        self._held.pop(process, None)
