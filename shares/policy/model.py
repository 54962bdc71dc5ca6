"""What a policy of turns is asked, and what it answers."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

MS: Final = 1_000_000  # nanoseconds
MILLION: Final = 1_000_000  # parts per million of one card
TURN_NS: Final = 50 * MS
SHORTEST_NS: Final = 10 * MS  # of a turn: shorter ones are lost in draining the device and asking anew
LEAST_PPM: Final = 1_000  # the weight of a container without a guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The compute of one card that a container has, in parts per million."""

    request_ppm: int  # guaranteed
    limit_ppm: int = MILLION  # what it may use while others leave it

    @property
    def weight_ppm(self) -> int:
        return max(self.request_ppm, LEAST_PPM)


@dataclass(frozen=True, slots=True)
class Next:
    """Whose turn is next, and for how long at most."""

    name: str
    quota_ns: int


@dataclass(frozen=True, slots=True)
class NotBefore:
    """None of those who wait may run before this moment."""

    at_ns: int


class Policy(Protocol):
    """Share out one card among containers by name. Every `now_ns` is at least the one before it."""

    def join(self, name: str, share: Share, now_ns: int) -> None: ...

    def leave(self, name: str) -> None: ...

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        """Note that this container wants the card, or has it, from now on. `estimate_ns`: of its next burst of work."""
        ...

    def end(self, name: str, now_ns: int) -> None:
        """Note that it neither wants nor has the card from now on."""
        ...

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Count that the container had the card for this time. A long turn is counted in several parts, the last one at `end`
        at the latest."""
        ...

    def choose(self, waiting: Collection[str], now_ns: int) -> Next | NotBefore:
        """Choose among those who wait, of whom there is at least one."""
        ...

    def longest(self, name: str, now_ns: int) -> int | None:
        """Return for how long this container may have the card while no other wants it; None: without end."""
        ...

    def is_due(self, waiting: Collection[str], holder: str, now_ns: int) -> bool:
        """Return whether one who waits should have the card before the turn of its holder, counted until now, is over."""
        ...

    def forgive(self, now_ns: int) -> None:
        """Forget differences in use: the time that passed says nothing, because turns were not given in it."""
        ...
