"""Count the memory of one card that the processes of one container use, in bytes, and allow no more than the limit.

Amounts are counted for each connection: a process that ends, in whatever way, gives its amount back. A process that only lost
its connection still holds its memory: its amount stays until it is connected again, or has ended.
"""

from collections.abc import Hashable
from typing import Final

from lading.devices.assignment import MAX_MEMORY_MIB

# The most that one process can hold. The sum of all connected and lost processes of a container fits into 64 bits.
MAX_BYTES: Final = MAX_MEMORY_MIB << 20


class Memory:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[Hashable, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self._held.values())

    def add(self, process: Hashable, amount: int, *, held: bool) -> bool:
        """Count an amount, and return whether that was possible. `held`: it is allocated already, and counts also beyond the
        limit. No process may hold more than MAX_BYTES."""
        if not self.is_possible(process, amount) or (not held and amount > self.limit_bytes - self.used_bytes):
            return False
        self._held[process] = self._held.get(process, 0) + amount
        return True

    def is_possible(self, process: Hashable, amount: int) -> bool:
        """Return whether a process can hold so much more."""
        return amount <= MAX_BYTES - self._held.get(process, 0)

    def subtract(self, process: Hashable, amount: int) -> None:
        """Count an amount as freed. The process's sum does not go below 0."""
        self._held[process] = max(0, self._held.get(process, 0) - amount)

    def gone(self, process: Hashable) -> None:
        self._held.pop(process, None)
