"""Define the interface of a policy, which decides the turns of a card, and its answers.

Tests: tests/unit/shares/test_card.py
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

MS: Final = 1_000_000  # nanoseconds
MILLION: Final = 1_000_000  # parts per million of one card
TURN_NS: Final = 50 * MS
SHORTEST_NS: Final = 10 * MS  # shortest turn; a shorter one would be spent on draining the device and requesting the next turn
LEAST_PPM: Final = 1_000  # least weight, which a container without a guarantee has


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Hold a container's share of the compute of one card, in parts per million."""

    request_ppm: int  # guaranteed part
    limit_ppm: int = MILLION  # maximum part, which the container may use while others do not

    @property
    def weight_ppm(self) -> int:
        return max(self.request_ppm, LEAST_PPM)


@dataclass(frozen=True, slots=True)
class Next:
    """Name the container that gets the next turn, and the turn's maximum length."""

    name: str
    quota_ns: int


@dataclass(frozen=True, slots=True)
class NotBefore:
    """Hold the time before which no waiting container may run."""

    at_ns: int


class Policy(Protocol):
    """Share out one card among containers by name. Every `now_ns` is at least the one before it."""

    def join(self, name: str, share: Share, now_ns: int) -> None: ...

    def leave(self, name: str) -> None: ...

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        """Note that this container wants the card, or has it, from now on. `estimate_ns`: length of its next burst of work."""
        ...

    def end(self, name: str, now_ns: int) -> None:
        """Note that this container neither wants nor has the card from now on."""
        ...

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Count that the container had the card for this time. A long turn is counted in several parts, the last one at `end`
        at the latest."""
        ...

    def choose(self, waiting: Collection[str], now_ns: int) -> Next | NotBefore:
        """Choose the next turn among the waiting containers, of which there is at least one."""
        ...

    def longest(self, name: str, now_ns: int) -> int | None:
        """Return for how long this container may have the card while no other wants it; None: without end."""
        ...

    def is_due(self, waiting: Collection[str], holder: str, now_ns: int) -> bool:
        """Return whether a waiting container should get the card before the holder's turn is over. The turn must be charged
        until now."""
        ...

    def forgive(self, now_ns: int) -> None:
        """Forget differences in use, after a time in which no turns were given."""
        ...
