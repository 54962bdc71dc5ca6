"""Give turns of one card to containers, one container at a time, and count each container's time. Pure, in nanoseconds.

A container's processes share its turn: each process that wants to launch work gets the rest of the turn. The turn is over when
the last of them has released it, and a process releases it when its work on the device is done. So a GPU kernel that outlasts
the turn is charged to its container, and no other container runs meanwhile. A silent process loses its turn at the end of the
lease; time that it reports later is charged then.

The lease is longer for a container whose work ran for long after its last turns, because it paid for that time. Estimates of a
client do not count. For example, after 500 ms the next lease ends 1 s after the turn, and the one after it 500 ms.

    free ─ choose ─▶ held ─ all processes released or ended ─▶ free
                       └─── no frame until the lease ends ───▶ free, the owner is late
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from shares.policy.model import MS, SHORTEST_NS, TURN_NS, NotBefore, Policy, Share

NO_END: Final = 2**63 - 1
GRACE_NS: Final = 300 * MS  # least time from the end of a turn to the end of its lease, for the last GPU kernel
MAX_GRACE_NS: Final = 2_000 * MS  # greatest such time: a silent process keeps the card from other containers no longer
MAX_ESTIMATE_NS: Final = 2_000 * MS  # greatest estimate of a burst, because the policy `window` makes turns as long as bursts

P = TypeVar("P", bound=Hashable)  # type of the values that identify processes


@dataclass(frozen=True, slots=True)
class Token(Generic[P]):
    """Tell this process that it may launch work until `until_ns`."""

    process: P
    until_ns: int


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """Write the end of a container's turn (0: it has none), and the number of waiting containers, into the container's page."""

    container: str
    until_ns: int
    waiters: int


Effects = list[Token[P] | PageUpdate]


@dataclass(slots=True, kw_only=True)
class _Container(Generic[P]):
    wanting: dict[P, None] = field(default_factory=dict)  # processes that want the card, in the order of their frames
    holding: dict[P, None] = field(default_factory=dict)  # processes that have a token
    held_ns: int = 0  # charged time since the container joined
    overrun_ns: int = 0  # charged time from the end of this turn to the last frame of a process that had a token
    longest_ns: int = 0  # the greatest overrun of the last turns; each turn halves it
    late_from_ns: int | None = None  # end of the turn whose lease the container lost; None: it lost none
    late_to_ns: int = 0  # time up to which the lost turn was charged
    shown: PageUpdate | None = None


class Card(Generic[P]):
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._containers: dict[str, _Container[P]] = {}
        self._holder = ""
        self._until_ns = 0
        self._counted_ns = 0  # time up to which the turn is charged
        self._began_ns = 0
        self._wake_ns = NO_END

    @property
    def holder(self) -> str:
        """Return the container that has the turn; empty if the card is free."""
        return self._holder

    def held_ns(self, container: str, now_ns: int) -> int:
        """Return for how long this container has had the card since it joined."""
        running = now_ns - self._counted_ns if container == self._holder else 0
        return self._containers[container].held_ns + running

    def count_waiters(self, container: str) -> int:
        """Return how many other containers want the card and do not have the turn."""
        return sum(name != container for name in self._waiting())

    def join(self, container: str, share: Share, now_ns: int) -> None:
        self._containers[container] = _Container()
        self._policy.join(container, share, now_ns)

    def leave(self, container: str, now_ns: int) -> Effects[P]:
        """Forget a container whose grant ended."""
        if container not in self._containers:
            return []
        if self._holder == container:
            self._free(now_ns)
        del self._containers[container]
        self._policy.leave(container)
        return self.look(now_ns)

    def want(self, container: str, process: P, estimate_ns: int, late_ns: int, now_ns: int) -> Effects[P]:
        """Note that this process wants to launch work; a process that holds the turn renews it."""
        its = self._containers[container]
        self._settle(now_ns)
        self._charge_late(container, late_ns, now_ns)
        if not (its.wanting or its.holding):
            self._policy.begin(container, min(estimate_ns, MAX_ESTIMATE_NS), now_ns)
        self._take_back(its, process, now_ns)
        its.wanting[process] = None
        return self.look(now_ns)

    def release(self, container: str, process: P, late_ns: int, now_ns: int) -> Effects[P]:
        """Note that this process has no work on the device, and wants to launch none now."""
        its = self._containers[container]
        self._settle(now_ns)
        self._charge_late(container, late_ns, now_ns)
        was = bool(its.wanting or its.holding)
        self._take_back(its, process, now_ns)
        its.wanting.pop(process, None)
        if was and not its.wanting and not its.holding:
            self._policy.end(container, now_ns)
        return self.look(now_ns)

    def gone(self, container: str, process: P, now_ns: int) -> Effects[P]:
        """Note that the process ended: its work on the device ends with it."""
        return self.release(container, process, 0, now_ns) if container in self._containers else []

    def look(self, now_ns: int) -> Effects[P]:
        """Charge and check the turn, choose the next turn if it is over, and return the effects."""
        self._settle(now_ns)
        effects: Effects[P] = []
        if self._holder:
            self._check_turn(now_ns)
        if not self._holder:
            self._choose(now_ns)
        if self._holder:
            its = self._containers[self._holder]
            if now_ns < self._until_ns:  # else the processes that want the card wait for the next turn
                its.holding |= its.wanting
                effects += [Token(process, self._until_ns) for process in its.wanting]
                its.wanting = {}
        return [*self._pages(), *effects]  # pages first, because a process with a token reads its page

    def stalled(self, now_ns: int) -> Effects[P]:
        """Start the turn anew, uncharged, after a time in which the server did not run: no process could renew or release."""
        self._policy.forgive(now_ns)
        self._began_ns = self._counted_ns = now_ns
        if self._holder and self._until_ns != NO_END:
            self._until_ns = now_ns + TURN_NS
        return self.look(now_ns)

    def wake_ns(self) -> int:
        """Return the latest time for the next call of `look`."""
        return self._wake_ns

    def _check_turn(self, now_ns: int) -> None:
        its, others = self._containers[self._holder], self._waiting()
        if not its.holding:
            self._free(now_ns)
            return
        longest = self._policy.longest(self._holder, now_ns)
        if self._until_ns == NO_END and (others or longest is not None):
            self._until_ns = max(now_ns, self._began_ns + TURN_NS)
        had_enough = now_ns - self._began_ns >= SHORTEST_NS
        if others and now_ns < self._until_ns and had_enough and self._policy.is_due(others, self._holder, now_ns):
            self._until_ns = now_ns
        grace_ns = min(max(GRACE_NS, 2 * its.longest_ns), MAX_GRACE_NS)
        lease_ns = NO_END if self._until_ns == NO_END else self._until_ns + grace_ns
        if now_ns >= lease_ns:
            its.late_from_ns, its.late_to_ns = self._until_ns, now_ns
            its.holding = {}
            if not its.wanting:
                self._policy.end(self._holder, now_ns)
            self._free(now_ns)
            return
        # A waiting container may become due before the turn ends, and another check after the shortest turn costs little.
        due_ns = max(self._began_ns, now_ns) + SHORTEST_NS if others else NO_END
        self._wake_ns = min(due_ns, self._until_ns) if now_ns < self._until_ns else lease_ns

    def _choose(self, now_ns: int) -> None:
        waiting = self._waiting()
        self._wake_ns = NO_END
        if not waiting:
            return
        choice = self._policy.choose(waiting, now_ns)
        if isinstance(choice, NotBefore):
            self._wake_ns = max(choice.at_ns, now_ns + 1)
            return
        alone = len(waiting) == 1 and self._policy.longest(choice.name, now_ns) is None
        self._holder, self._began_ns, self._counted_ns = choice.name, now_ns, now_ns
        self._until_ns = NO_END if alone else now_ns + choice.quota_ns
        self._wake_ns = NO_END if alone else min(self._until_ns, now_ns + SHORTEST_NS)

    def _take_back(self, its: _Container[P], process: P, now_ns: int) -> None:
        """Take the token of a process that sent a frame, and note for how long its container had the card after the turn."""
        if process in its.holding:
            del its.holding[process]
            its.overrun_ns = max(its.overrun_ns, now_ns - self._until_ns)

    def _free(self, now_ns: int) -> None:
        self._settle(now_ns)
        its = self._containers[self._holder]
        its.longest_ns, its.overrun_ns = max(its.overrun_ns, its.longest_ns // 2), 0
        self._holder, self._until_ns = "", 0

    def _settle(self, now_ns: int) -> None:
        """Charge the turn up to now."""
        if self._holder and now_ns > self._counted_ns:
            self._policy.charge(self._holder, self._counted_ns, now_ns)
            self._containers[self._holder].held_ns += now_ns - self._counted_ns
            self._counted_ns = now_ns

    def _charge_late(self, container: str, late_ns: int, now_ns: int) -> None:
        """Charge the time that a process ran after its container lost the lease, unless that time was charged already."""
        its = self._containers[container]
        if its.late_from_ns is None:
            return
        ended_ns = min(its.late_from_ns + late_ns, now_ns)
        its.longest_ns = max(its.longest_ns, ended_ns - its.late_from_ns)
        if ended_ns > its.late_to_ns:
            self._policy.charge(container, its.late_to_ns, ended_ns)
            its.held_ns += ended_ns - its.late_to_ns
        its.late_from_ns = None

    def _waiting(self) -> list[str]:
        """Return the containers that want the card and do not have the turn."""
        return [name for name, its in self._containers.items() if its.wanting and name != self._holder]

    def _pages(self) -> Effects[P]:
        waiting = self._waiting()
        changed: Effects[P] = []
        for name, its in self._containers.items():
            until_ns = self._until_ns if name == self._holder else 0
            page = PageUpdate(name, until_ns, len(waiting) - (name in waiting))
            if page != its.shown:
                its.shown = page
                changed.append(page)
        return changed
