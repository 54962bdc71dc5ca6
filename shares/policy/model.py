"""Define the interface of a policy, which decides the turns of a card, and its answers.

Tests: tests/unit/shares/test_card.py
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

MS: Final = 1_000_000  # nanoseconds
MILLION: Final = 1_000_000  # parts per million of one card
LEAST_PPM: Final = 1_000  # least weight, which a container without a guarantee has
PAUSE_NS: Final = 2 * MS  # longest time for which a guest may pause the holder of the turn
NO_END: Final = 2**63 - 1  # end of a turn that lasts until another container wants the card


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Hold a container's share of the compute of one card, in parts per million."""

    request_ppm: int  # guaranteed part
    limit_ppm: int = MILLION  # maximum part, which the container may use while others do not

    @property
    def weight_ppm(self) -> int:
        return max(self.request_ppm, LEAST_PPM)


@dataclass(frozen=True, slots=True)
class NotBefore:
    """Hold the time before which no waiting container may run."""

    at_ns: int


class Policy(Protocol):
    """Share out one card among containers by name. Every `now_ns` is at least the one before it."""

    def join(self, name: str, share: Share, now_ns: int) -> None: ...

    def leave(self, name: str) -> None: ...

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        """Note that this container wants a turn, or has one, from now on. `estimate_ns`: length of its first kernel."""

    def end(self, name: str, now_ns: int) -> None:
        """Note that this container neither wants nor has a turn from now on."""

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Count that the container had the card for this time of its turn. A turn is counted in several parts, the last one at
        `end` at the latest."""

    def use(self, name: str, used_ns: int, now_ns: int) -> int:
        """Count time of the device that the container had outside its turns. Return the part that is taken off the turn of the
        holder: a container that reports more than it may use cannot give the time to another one."""

    def choose(self, waiting: Collection[str], now_ns: int) -> str | NotBefore:
        """Choose who gets the next turn among the waiting containers, of which there is at least one."""

    def ends_ns(self, holder: str, began_ns: int, waiting: Collection[str], now_ns: int) -> int:
        """Return when the holder's turn should end while these others wait, or NO_END. The turn must be charged until now."""

    def may_pause(self, name: str, now_ns: int) -> bool:
        """Return whether the holder may be paused for a guest, which works outside its turns, of this container."""

    def paused(self, name: str, length_ns: int) -> None:
        """Count for how long the holder was paused for this container."""

    def forgive(self, now_ns: int) -> None:
        """Forget differences in use, after a time in which no turns were given."""
