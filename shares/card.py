"""Give turns of one card to containers, one container at a time, and count each container's time. Pure, in nanoseconds.

A container's processes share its turn: each process that wants to launch work gets the rest of the turn. A turn ends when the
last of them has released it, or by the clock: a process sees its end on its page, and launches nothing after it. Work that is
queued on the device then runs on, beside the next containers' work; the driver divides the device between them. When that work
has ended, the process reports its device time: it is charged to its container, and taken off what the turns beside it cost.

A process may also work as a *guest*, outside its container's turns, for a time that the library counts. It reports the device
time of such work at its beginning, which is taken off the turn that is under way. A guest that was idle may pause the holder
for a moment.

    free ─ choose ─▶ held ─ all processes released or ended ─▶ free
                       └─── the turn's end ───────────────▶ free; who wants to go on waits for another turn
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from shares.policy.model import MS, NO_END, PAUSE_NS, NotBefore, Policy, Share

MAX_ESTIMATE_NS: Final = 2_000 * MS  # greatest estimate of the next work: a silent process has a turn for no longer
LOOK_NS: Final = (
    10 * MS
)  # interval of looks at a turn while others wait, because those that their limits hold back may be ready
EXTENDED_NS: Final = MS // 2  # a turn that reached its end goes on if its end would now be later by more than this
RECENT_TURNS: Final = 16  # maximum turns of others that a kernel may outlast, so that its report makes them cost less
NEIGHBOUR_NS: Final = 1_000 * MS  # a container is a neighbour of others for so long after its last frame

P = TypeVar("P", bound=Hashable)  # type of the values that identify processes


@dataclass(frozen=True, slots=True)
class Token(Generic[P]):
    """Tell this process that it may launch work until `until_ns`."""

    process: P
    until_ns: int


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """Write what a container's processes see without a frame into the container's page."""

    container: str
    until_ns: int  # end of the container's turn, or of its last one; 0: it had none
    waiters: int  # number of other containers that wait for a turn
    neighbours: bool  # other containers have used the card within the last second
    pause: int  # number of the pause in which the container should launch nothing; 0: there is none


Effects = list[Token[P] | PageUpdate]


@dataclass(slots=True, kw_only=True)
class _Container(Generic[P]):
    wanting: dict[P, int] = field(default_factory=dict)  # processes that want the card, and the time that they estimate
    holding: dict[P, None] = field(default_factory=dict)  # processes that have a token
    held_ns: int = 0  # charged time since the container joined
    waited_ns: int = 0  # time since then for which it wanted the card and did not have the turn
    beside_ns: int = 0  # device time of other containers during its turns, by which its next time is charged less
    heard_ns: int | None = None  # time of the last frame
    ended_ns: int = 0  # end of the last turn
    shown: tuple[int, int, bool, int] | None = None  # the last PageUpdate, without the container


@dataclass(slots=True)
class _Turn:
    container: str
    length_ns: int = 0  # charged time of the turn, less device time that other containers reported for it


class _Pause(NamedTuple, Generic[P]):
    container: str
    process: P
    began_ns: int


class Card(Generic[P]):
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._containers: dict[str, _Container[P]] = {}
        self._holder = ""
        self._until_ns = 0
        self._counted_ns = 0  # time up to which the turn is charged
        self._settled_ns = 0  # time up to which waiting is counted
        self._turns: deque[_Turn] = deque(maxlen=RECENT_TURNS)  # the last RECENT_TURNS turns, the present one included
        self._began_ns = 0
        self._wake_ns = NO_END
        self._pause: _Pause[P] | None = None
        self._pauses = 0  # number of pauses up to now

    @property
    def holder(self) -> str:
        """Return the container that has the turn; empty if the card is free."""
        return self._holder

    def held_ns(self, container: str, now_ns: int) -> int:
        """Return for how long this container has had the card since it joined."""
        its = self._containers[container]
        running = max(0, now_ns - self._counted_ns - its.beside_ns) if container == self._holder else 0
        return its.held_ns + running

    def waited_ns(self, container: str, now_ns: int) -> int:
        """Return for how long this container has waited for turns since it joined, also by its limit."""
        return self._containers[container].waited_ns + (now_ns - self._settled_ns if container in self._waiting() else 0)

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
        self._settle(now_ns)
        if self._pause and self._pause.container == container:
            self._end_pause(now_ns)
        if self._holder == container:
            self._free(now_ns)
        del self._containers[container]
        self._turns = deque((turn for turn in self._turns if turn.container != container), RECENT_TURNS)
        self._policy.leave(container)
        return self.look(now_ns)

    def want(self, container: str, process: P, estimate_ns: int, used_ns: int, now_ns: int) -> Effects[P]:
        """Note that this process wants a turn. `used_ns`: device time that it had outside turns since its last frame."""
        its = self._count(container, process, now_ns)
        self._count_ended(container, used_ns, now_ns)
        its.holding.pop(process, None)
        its.wanting[process] = min(estimate_ns, MAX_ESTIMATE_NS)
        self._policy.begin(container, max(its.wanting.values()), now_ns)
        return self.look(now_ns)

    def release(self, container: str, process: P, used_ns: int, now_ns: int) -> Effects[P]:
        """Note that this process wants no turn now. `used_ns`: device time that it had outside turns since its last frame."""
        its = self._count(container, process, now_ns)
        self._count_ended(container, used_ns, now_ns)
        was = bool(its.wanting or its.holding)
        its.holding.pop(process, None)
        its.wanting.pop(process, None)
        if was and not its.wanting and not its.holding:
            self._policy.end(container, now_ns)
        return self.look(now_ns)

    def use(self, container: str, process: P, used_ns: int, now_ns: int, *, pause: bool) -> Effects[P]:
        """Count device time that this process had outside turns since its last frame. `pause`: pause the holder for the process
        from now on; otherwise, such a pause ends."""
        its = self._count(container, process, now_ns)
        if used_ns:
            its.held_ns += used_ns
            beside_ns = self._policy.use(container, used_ns, now_ns)
            if self._holder not in ("", container):
                self._containers[self._holder].beside_ns += beside_ns
        if pause and not self._pause and self._holder not in ("", container) and self._policy.may_pause(container, now_ns):
            self._pause = _Pause(container, process, now_ns)
            self._pauses += 1
        return self.look(now_ns)

    def gone(self, container: str, process: P, now_ns: int) -> Effects[P]:
        """Note that the process ended: its work on the device ends with it."""
        return self.release(container, process, 0, now_ns) if container in self._containers else []

    def look(self, now_ns: int) -> Effects[P]:
        """Charge and check the turn, choose the next turn if it is over, and return the effects."""
        self._settle(now_ns)
        if self._pause and now_ns - self._pause.began_ns >= PAUSE_NS:
            self._end_pause(now_ns)
        self._wake_ns = NO_END
        if self._holder:
            self._check_turn(now_ns)
        if not self._holder:
            self._choose(now_ns)
        tokens: Effects[P] = []
        if self._holder:
            its = self._containers[self._holder]
            begins, left_ns = now_ns == self._began_ns, self._until_ns - now_ns
            for process in [process for process, estimate_ns in its.wanting.items() if begins or left_ns >= estimate_ns]:
                del its.wanting[process]
                its.holding[process] = None
                tokens.append(Token(process, self._until_ns))
            self._wake_ns = min(self._until_ns, now_ns + LOOK_NS if self._waiting() else NO_END)
        if self._pause:
            self._wake_ns = min(self._wake_ns, self._pause.began_ns + PAUSE_NS)
        return [*self._pages(now_ns), *tokens]  # pages first, because a process with a token reads its page

    def stalled(self, now_ns: int) -> Effects[P]:
        """Start the turn anew, uncharged, after a time in which the server did not run: no process could renew or release."""
        self._policy.forgive(now_ns)
        self._began_ns = self._counted_ns = self._settled_ns = now_ns
        self._until_ns = NO_END if self._holder else 0
        return self.look(now_ns)

    def wake_ns(self) -> int:
        """Return the latest time for the next call of `look`."""
        return self._wake_ns

    def _count(self, container: str, process: P, now_ns: int) -> _Container[P]:
        """Note a frame of this process, which ends its pause of the holder."""
        its = self._containers[container]
        self._settle(now_ns)
        its.heard_ns = now_ns
        if self._pause and self._pause.process == process:
            self._end_pause(now_ns)
        return its

    def _count_ended(self, container: str, used_ns: int, now_ns: int) -> None:
        """Charge the container for work that ran during the turns of other containers, since its own last turn. Give back
        what those turns were charged for that time: at most half of each, as the device divides its time between the two."""
        if not used_ns:
            return
        self._containers[container].held_ns += used_ns
        left_ns = self._policy.use(container, used_ns, now_ns)
        for turn in reversed(self._turns):
            if turn.container == container or not left_ns:
                return
            beside_ns = min(left_ns, turn.length_ns // 2)
            left_ns -= beside_ns
            turn.length_ns -= beside_ns
            self._containers[turn.container].beside_ns += beside_ns

    def _end_pause(self, now_ns: int) -> None:
        if self._pause:
            self._policy.paused(self._pause.container, now_ns - self._pause.began_ns)
            self._pause = None

    def _check_turn(self, now_ns: int) -> None:
        its = self._containers[self._holder]
        if not its.holding:  # those that want the card, for longer than the rest of this turn, wait for the next one
            self._free(now_ns)
            return
        ends_ns = self._policy.ends_ns(self._holder, self._began_ns, self._waiting(), now_ns)
        if now_ns < self._until_ns:
            self._until_ns = min(self._until_ns, max(ends_ns, now_ns))
        elif ends_ns > now_ns + EXTENDED_NS:
            self._until_ns = ends_ns
        if now_ns >= self._until_ns:
            its.holding = {}
            if not its.wanting:
                self._policy.end(self._holder, now_ns)
            self._free(now_ns)

    def _choose(self, now_ns: int) -> None:
        waiting = self._waiting()
        if not waiting:
            return
        choice = self._policy.choose(waiting, now_ns)
        if isinstance(choice, NotBefore):
            self._wake_ns = max(choice.at_ns, now_ns + 1)
            return
        self._holder, self._began_ns, self._counted_ns = choice, now_ns, now_ns
        self._turns.append(_Turn(choice))
        self._until_ns = self._policy.ends_ns(choice, now_ns, self._waiting(), now_ns)

    def _free(self, now_ns: int) -> None:
        self._settle(now_ns)
        self._containers[self._holder].ended_ns = min(self._until_ns, now_ns)
        self._holder, self._until_ns = "", 0

    def _settle(self, now_ns: int) -> None:
        """Charge the turn up to now, less the device time that others had meanwhile, and count the time for which others
        waited."""
        for name in self._waiting() if now_ns > self._settled_ns else ():
            self._containers[name].waited_ns += now_ns - self._settled_ns
        self._settled_ns = now_ns
        if self._holder and now_ns > self._counted_ns:
            its, length_ns = self._containers[self._holder], now_ns - self._counted_ns
            beside_ns = min(its.beside_ns, length_ns)
            its.beside_ns -= beside_ns
            its.held_ns += length_ns - beside_ns
            self._turns[-1].length_ns += length_ns - beside_ns
            self._policy.charge(self._holder, self._counted_ns + beside_ns, now_ns)
            self._counted_ns = now_ns

    def _waiting(self) -> list[str]:
        """Return the containers that want the card and do not have the turn."""
        return [name for name, its in self._containers.items() if its.wanting and name != self._holder]

    def _pages(self, now_ns: int) -> Effects[P]:
        waiting = self._waiting()
        active = {
            name
            for name, its in self._containers.items()
            if its.holding or its.wanting or (its.heard_ns is not None and now_ns - its.heard_ns < NEIGHBOUR_NS)
        }
        waiters, neighbours = len(waiting), len(active)
        changed: Effects[P] = []
        for name, its in self._containers.items():  # at each frame, for each container: compare first, and make few objects
            holds = name == self._holder
            shown = (
                self._until_ns if holds else its.ended_ns,
                waiters - (name in waiting),
                neighbours > (name in active),
                self._pauses if holds and self._pause else 0,
            )
            if shown != its.shown:
                its.shown = shown
                changed.append(PageUpdate(name, *shown))
        return changed
