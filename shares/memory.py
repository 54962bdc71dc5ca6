"""Count the memory of one card that the processes of one container use, in bytes, and allow no more than the limit. Pure.

Amounts are counted for each connection: a process that ends, in whatever way, gives its amount back. A process that only lost
its connection still holds its memory: its amount stays until it is connected again, or has ended.

The driver says what a process has of the card, with what no allocation shows: a context takes some hundred MiB. What goes
beyond the amounts that the process reported counts besides. For example, a process reported 100 MiB, and the driver says 618.
So 518 count besides, and when the process frees its 100 MiB, 518 are left.

- An allocation counts before the driver makes it, and until the driver has freed it. So a reading is compared with the greatest
  amount that the process had reported since the reading began, and what counts besides is never too much for long.
- A context counts from its request on, as much as contexts of this card were seen to take. The first reading that begins after
  the process's next request says what it took.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from lading.devices.assignment import MAX_MEMORY_MIB

# The most that one process can hold. The sum of all connected and lost processes of a container fits into 64 bits.
MAX_BYTES: Final = MAX_MEMORY_MIB << 20
MAX_CONTEXTS: Final = 1024  # most contexts of one process on a card; each is some MiB of the process's own memory


@dataclass(slots=True)
class _Held:
    reported: int = 0  # bytes that the process said it has allocated
    most: int = 0  # the greatest `reported` since the present reading began
    contexts: int = 0
    unread: int = 0  # so many of the contexts are in no reading yet
    is_new: bool = False  # the last context is so new that no reading can be expected to have it
    requested: bool = False  # the process requested memory after its last context, which is there by now
    in_reading: bool = False  # the request was before the present reading began
    of_contexts: int = 0  # bytes that the driver said the contexts take
    beside: int = 0  # bytes that the last readings said the process has besides, with its contexts
    before: int = 0  # the same of the reading before


class Memory:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.context_bytes = 0  # memory that a context of this card takes, as far as the driver has said
        self._held: dict[Hashable, _Held] = {}

    @property
    def used_bytes(self) -> int:
        return sum(its.reported + self._beside(its) for its in self._held.values())

    def add(self, process: Hashable, amount: int, *, held: bool) -> bool:
        """Count an amount, and return whether that was possible. `held`: it is allocated already, and counts also beyond the
        limit. No process may hold more than MAX_BYTES."""
        if not self.is_possible(process, amount) or not (held or self.fits(amount)):
            return False
        its = self._of(process)
        its.reported += amount
        its.most = max(its.most, its.reported)
        return True

    def fits(self, amount: int) -> bool:
        return amount <= self.limit_bytes - self.used_bytes

    def is_possible(self, process: Hashable, amount: int) -> bool:
        """Return whether a process can hold so much more."""
        return amount <= MAX_BYTES - (self._held[process].reported if process in self._held else 0)

    def may_fit(self, amount: int) -> bool:
        """Return whether the limit has no place for this amount now, and may have one after two more readings: what the driver
        showed of allocations that were freed meanwhile still counts."""
        contexts = sum(its.of_contexts + its.unread * self.context_bytes for its in self._held.values())
        most = self.limit_bytes - contexts - sum(its.reported for its in self._held.values())
        return not self.fits(amount) and amount <= most

    def subtract(self, process: Hashable, amount: int) -> None:
        """Count an amount as freed. The process's sum does not go below 0."""
        its = self._of(process)
        its.reported = max(0, its.reported - amount)

    def gone(self, process: Hashable) -> None:
        self._held.pop(process, None)

    def set_contexts(self, process: Hashable, number: int, *, held: bool) -> bool:
        """Count the contexts that a process is about to have, or has (`held`). Return whether that was possible."""
        its = self._of(process)
        more = number - its.contexts
        if not held and more > 0 and not self.fits(more * self.context_bytes):
            return False
        if more < 0:
            ended = min(-more, its.unread)  # a context that the driver refused was never there
            its.unread -= ended
            if its.contexts > ended:
                its.of_contexts = its.of_contexts * number // (its.contexts - ended)
        its.unread += max(0, more)
        its.contexts = number
        its.is_new, its.requested, its.in_reading = more > 0 and not held, held and its.unread > 0, False
        return True

    def awaits_reading(self, process: Hashable) -> bool:
        """Return whether the next reading says what a context takes, now that the process requests memory in it."""
        its = self._of(process)
        its.requested = its.requested or its.is_new
        return its.is_new

    def begin_reading(self) -> None:
        """Note that the driver is asked from now on."""
        for its in self._held.values():
            its.most, its.in_reading = its.reported, its.requested

    def end_reading(self, process: Hashable, driver_bytes: int | None) -> int:
        """Take what the driver said the process has; None: the process is not in its list. Return how many bytes a context
        takes, if that is seen, else 0."""
        its = self._of(process)
        its.before, its.beside = its.beside, max(0, (driver_bytes or 0) - its.most)
        if not its.in_reading:
            return 0
        its.is_new = its.requested = its.in_reading = False
        if driver_bytes is None:
            return 0
        is_first = its.contexts == its.unread == 1 and its.most == 0
        its.of_contexts, its.unread = max(its.of_contexts, its.beside), 0
        return its.of_contexts if is_first else 0

    def skip_reading(self) -> None:
        """Note that the driver did not answer: no process waits for it."""
        for its in self._held.values():
            its.is_new = its.requested = its.in_reading = False

    def _of(self, process: Hashable) -> _Held:
        return self._held.setdefault(process, _Held())

    def _beside(self, its: _Held) -> int:
        """Return what counts besides. An amount that only one of two readings had is not gone yet: the process may have
        reported an allocation that it was just making."""
        return max(its.of_contexts + its.unread * self.context_bytes, its.beside, its.before)
