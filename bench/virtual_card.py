"""Simulate containers on one card in virtual time: what share each gets, and how long each waits. Times are in nanoseconds.

Each container runs one program, which launches kernels. Between the program and the device is a model of Lading's library
(shares/library/compute.c), whose turns the server's own code gives (shares/card.py). The model knows the length of each kernel;
the library learns it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import cycle
from typing import Final

from bench.virtual_device import US, Clock, Context, Device
from shares.card import Card, Effects, PageUpdate
from shares.policy.model import MILLION, MS, NO_END, PAUSE_NS, Policy, Share

ROUND_TRIP_NS: Final = 300 * US
WINDOW_NS: Final = 1_000 * MS
SYNCHRONISED_NS: Final = 8 * US  # from the end of the last kernel to the program's next instruction

# The library's figures, which shares/library/compute.c and account.c have too.
QUIET_NS: Final = MS // 10
CREDIT_NS: Final = 5 * MS
GUEST_FACTOR: Final = 2
PAUSE_AFTER_NS: Final = 5 * MS
IDLE_NS: Final = MS
OWN_PAUSE_NS: Final = 300 * US
QUEUE_NS: Final = 10 * MS
SHARED_QUEUE_NS: Final = MS // 2
LONG_NS: Final = 2 * MS
SLICED_NS: Final = 1_100 * US
REPORT_NS: Final = MS


class Step(Enum):
    LAUNCH = auto()  # a kernel of this length
    COMPUTE = auto()  # on the CPU for this time
    SYNCHRONISE = auto()  # wait until the device has done all kernels of the program
    SLEEP = auto()  # until this time


@dataclass(slots=True, kw_only=True)
class Work:
    """Describe one container's share and work, and record its kernels and waits."""

    name: str
    request: float
    limit: float = 1.0
    kernels_ms: Sequence[float] = (5.0,)  # in turn
    together: int = 1  # kernels between two synchronisations
    launch_us: float = 0.0  # CPU time of a launch
    begins_ms: float = 0.0
    pauses_ms: tuple[float, float] | None = None  # idle from the first to the second
    burst_ms: float = 0.0  # device time of a burst, then idle for the rest of `every_ms`; 0: busy always
    every_ms: float = 0.0
    bursts_end_ms: float = math.inf  # busy always from then on

    ran: list[tuple[int, int]] = field(default_factory=list)  # time for which the device worked for it: began, ended
    waits_ns: list[int] = field(default_factory=list)  # from wanting to launch a kernel to launching it
    answers_ns: list[int] = field(default_factory=list)  # length of each burst

    def share_of(self, began_ns: int, ended_ns: int) -> float:
        """Return the container's part of the device's time between these moments."""
        busy = sum(max(0, min(end, ended_ns) - max(begin, began_ns)) for begin, end in self.ran)
        return busy / (ended_ns - began_ns)

    def error_in_any_second(self, expected: float, since_ns: int, until_ns: int) -> float:
        """Return the greatest deviation from this share in any second, by steps of a tenth."""
        starts = range(since_ns, until_ns - WINDOW_NS + 1, WINDOW_NS // 10)
        return max(abs(self.share_of(start, start + WINDOW_NS) - expected) for start in starts)

    def program(self, clock: Clock) -> Iterator[tuple[Step, int]]:
        kernels = cycle(int(kernel * MS) for kernel in self.kernels_ms)
        due_ns = clock.now_ns
        while True:
            if self.pauses_ms and self.pauses_ms[0] * MS <= clock.now_ns < self.pauses_ms[1] * MS:
                due_ns = int(self.pauses_ms[1] * MS)
                yield Step.SLEEP, due_ns
            in_bursts = bool(self.burst_ms) and clock.now_ns < self.bursts_end_ms * MS
            began_ns, left_ns, left = clock.now_ns, int(self.burst_ms * MS), self.together
            while left_ns > 0 if in_bursts else left > 0:
                yield Step.COMPUTE, int(self.launch_us * US)
                kernel_ns = next(kernels)
                left_ns, left = left_ns - kernel_ns, left - 1
                yield Step.LAUNCH, kernel_ns
            yield Step.SYNCHRONISE, 0
            if in_bursts:
                self.answers_ns.append(clock.now_ns - began_ns)
                due_ns = max(due_ns + int(self.every_ms * MS), clock.now_ns)
                yield Step.SLEEP, due_ns


class _Library:
    """Model the library in one process: whether a launch may go to the device, and what is reported to the server."""

    def __init__(self, run: "_Run", work: Work) -> None:
        self._run, self._clock, self.work = run, run.clock, work
        self.page = PageUpdate(container=work.name, until_ns=0, waiters=0, neighbours=False, pause=0)
        self.context = Context(work.ran, self._done)
        self._program = work.program(run.clock)
        self._credit_ns, self._credited_ns = CREDIT_NS, run.clock.now_ns
        self._launched_ns = self._idle_from_ns = -WINDOW_NS  # the last launch; when the device should have done all work
        self._waits_from_ns: int | None = None
        self._waits_queue = self._synchronises = self._wants = self._pauses = False
        self._paused = 0  # number of the last pause, and when it was first seen
        self._paused_ns = self._pause_began_ns = 0
        self._used_ns = 0
        self._kernel_ns = 0
        self._turn_idle_ns = 0  # when the device should have done the launches of the last turn
        self._launched_length_ns = 0  # length of the last launch
        self._ended_ns = 0  # when the program last saw the end of all its launches
        self._synchronised_ns: int | None = None  # the last end of a synchronisation; None: a launch followed
        self._own_pauses_ns = 0, 0  # the last two times between such an end and the next launch

    def begin(self) -> None:
        self._run.device.add(self.context)
        self._resume()

    def got_token(self) -> None:
        self._wants = False
        self.wake()

    def wake(self) -> None:
        """Look again whether a launch that waits may go on."""
        if self._waits_from_ns is not None:
            self._launch()

    def _resume(self) -> None:
        for step, ns in self._program:
            if step is Step.COMPUTE and ns:
                self._clock.after(ns, self._resume)
                return
            if step is Step.SLEEP and ns > self._clock.now_ns:
                self._clock.at(ns, self._resume)
                return
            if step is Step.SYNCHRONISE:
                self._synchronises = bool(self.context.kernels)
                if self._synchronises:
                    return
            if step is Step.LAUNCH:
                self._kernel_ns = ns
                if not self._launch(resumes=True):
                    return

    def _launch(self, *, resumes: bool = False) -> bool:
        """Launch the kernel if that is allowed now. Return whether the program goes on at once."""
        now_ns = self._clock.now_ns
        if self._synchronised_ns is not None:
            self._own_pauses_ns = self._own_pauses_ns[1], now_ns - self._synchronised_ns
            self._synchronised_ns = None
        if self._waits_from_ns is None:
            self._refill(now_ns)
        if not self._may_launch(now_ns):
            if self._waits_from_ns is None:
                self._waits_from_ns = now_ns
            return False
        if self._waits_from_ns is not None:
            self.work.waits_ns.append(now_ns - self._waits_from_ns)
            self._waits_from_ns, self._credited_ns = None, now_ns
        in_turn = self._in_turn(now_ns)
        beside = self.page.neighbours and not in_turn  # the device works in slices for the holder too
        began_ns = max(self._idle_from_ns, now_ns + SLICED_NS * beside)
        self._launched_ns, self._idle_from_ns = now_ns, began_ns + self._kernel_ns * (1 + beside)
        self._launched_length_ns = self._kernel_ns
        if in_turn:
            self._credit_ns = max(0, self._credit_ns - self._kernel_ns)
            self._turn_idle_ns = self._idle_from_ns
        else:
            in_pause = self._pauses and now_ns + self._kernel_ns <= self._pause_began_ns + PAUSE_NS
            self._credit_ns -= 0 if in_pause else GUEST_FACTOR * self._kernel_ns
            if self._pauses and not in_pause:
                self._end_pause()
            self._used_ns += self._kernel_ns
        self._run.device.submit(self.context, self._kernel_ns)
        if not in_turn and self._used_ns >= REPORT_NS and self.page.neighbours and not self._pauses:
            self._run.send(self, partial(self._run.card.use, pause=False), self._report())
        self._waits_queue = self._is_full()
        if not self._waits_queue and not resumes:
            self._resume()
        return not self._waits_queue

    def _may_launch(self, now_ns: int) -> bool:
        if self._in_turn(now_ns):
            if not self.page.pause:
                return True
            if self._paused != self.page.pause:
                self._paused, self._paused_ns = self.page.pause, now_ns
                self._clock.after(PAUSE_NS, self.wake)
            return now_ns - self._paused_ns >= PAUSE_NS
        if self._wants:
            return False
        self._count_rest()
        if self._credit_ns > self._kernel_ns:
            rested = now_ns - self._launched_ns >= PAUSE_AFTER_NS
            if rested and self._credit_ns > PAUSE_NS and self.page.neighbours:
                self._pauses = True
                self._run.send(self, partial(self._run.card.use, pause=True), self._report())
                self._pause_began_ns = now_ns
            return True
        self._wants = True
        self._run.want(self, self._kernel_ns, self._report())
        return False

    def _count_rest(self) -> None:
        """Count the work of the last turn that was left at its end: it runs beside the next turn."""
        until_ns = min(self.page.until_ns, self._clock.now_ns)
        rest_ns = max(0, self._turn_idle_ns - until_ns)
        if self._turn_idle_ns and self._ended_ns > self._launched_ns:
            half_ns = (self._ended_ns - until_ns - SLICED_NS) * 5 // 11
            rest_ns = max(rest_ns, min(half_ns, self._launched_length_ns))
        self._turn_idle_ns = 0
        self._credit_ns -= GUEST_FACTOR * rest_ns
        self._used_ns += rest_ns

    def _in_turn(self, now_ns: int) -> bool:
        """Return whether the next kernel may be launched in the turn: a long one has to fit into the rest of it."""
        left_ns = self.page.until_ns - now_ns
        return left_ns > 0 if self._kernel_ns <= LONG_NS else left_ns > self._kernel_ns * 3 // 4

    def _refill(self, now_ns: int) -> None:
        """Let the credit grow for the time shortly after a launch, and for that without work on the device."""
        near_ns = min(now_ns, max(self._launched_ns + QUIET_NS, self._credited_ns))
        grows_ns = near_ns - self._credited_ns + max(0, now_ns - max(self._idle_from_ns, near_ns))
        self._credit_ns = min(CREDIT_NS, self._credit_ns + int(grows_ns * self.work.request))
        self._credited_ns = now_ns

    def _is_full(self) -> bool:
        queued_ns = self.context.queued_ns()
        if not self.page.neighbours:
            return queued_ns - self._kernel_ns > QUEUE_NS
        return queued_ns - (self._kernel_ns if self._kernel_ns <= LONG_NS else 0) > SHARED_QUEUE_NS

    def _report(self) -> int:
        used_ns, self._used_ns = self._used_ns, 0
        return used_ns

    def _done(self) -> None:
        """Go on after a kernel has ended."""
        if self._waits_queue and not self._is_full():
            self._waits_queue = False
            self._clock.after(5 * US, self._resume)
        if self.context.kernels:
            return
        self._ended_ns = self._clock.now_ns
        if self._synchronises:
            self._synchronises = False
            self._clock.after(SYNCHRONISED_NS, self._synchronised)
        if self._pauses:
            self._clock.after(QUIET_NS, partial(self._end_quiet_pause, self._launched_ns))
        if self._in_turn(self._clock.now_ns):
            self._clock.after(IDLE_NS, partial(self._release, self._launched_ns))

    def _synchronised(self) -> None:
        self._synchronised_ns = self._clock.now_ns
        if min(self._own_pauses_ns) >= OWN_PAUSE_NS and self.page.waiters and self._in_turn(self._clock.now_ns):
            self.page = replace(self.page, until_ns=self._clock.now_ns)
            self._run.send(self, self._run.card.release, self._report())
        self._resume()

    def _end_quiet_pause(self, launched_ns: int) -> None:
        if self._pauses and launched_ns == self._launched_ns and not self.context.kernels:
            self._end_pause()

    def _end_pause(self) -> None:
        self._pauses = False
        self._credit_ns -= min(self._clock.now_ns - self._pause_began_ns, PAUSE_NS)
        self._run.send(self, partial(self._run.card.use, pause=False), self._report())

    def _release(self, launched_ns: int) -> None:
        if launched_ns != self._launched_ns or self.context.kernels or not self._in_turn(self._clock.now_ns) or self._wants:
            return
        if self.page.waiters:
            self._run.send(self, self._run.card.release, self._report())
        else:
            self._clock.after(IDLE_NS, partial(self._release, launched_ns))


class _Run:
    def __init__(self, works: Sequence[Work], policy: Policy) -> None:
        self.clock = Clock()
        self.device = Device(self.clock)
        self.card: Card[str] = Card(policy)
        self.frames = 0
        self._libraries: dict[str, _Library] = {}
        self._wakes_ns = NO_END
        for work in works:
            self.clock.at(int(work.begins_ms * MS), partial(self._begin, work))

    def want(self, library: _Library, estimate_ns: int, used_ns: int) -> None:
        self.send(
            library, lambda name, process, used_ns, now_ns: self.card.want(name, process, estimate_ns, used_ns, now_ns), used_ns
        )

    def send(self, library: _Library, call: Callable[[str, str, int, int], Effects[str]], used_ns: int) -> None:
        """Have the server take a frame, half a round trip later."""
        name = library.work.name
        self.frames += 1
        self.clock.after(ROUND_TRIP_NS // 2, lambda: self._apply(call(name, name, used_ns, self.clock.now_ns)))

    def _begin(self, work: Work) -> None:
        share = Share(request_ppm=round(work.request * MILLION), limit_ppm=round(work.limit * MILLION))
        self.card.join(work.name, share, self.clock.now_ns)
        self._libraries[work.name] = _Library(self, work)
        self._libraries[work.name].begin()

    def _apply(self, effects: Effects[str]) -> None:
        for effect in effects:
            if isinstance(effect, PageUpdate):
                library = self._libraries[effect.container]
                ends_pause = library.page.pause and not effect.pause
                library.page = effect
                if ends_pause:
                    self.clock.after(50 * US, library.wake)
            else:
                self.frames += 1
                self.clock.after(ROUND_TRIP_NS // 2, self._libraries[effect.process].got_token)
        wakes_ns = self.card.wake_ns()
        if wakes_ns not in {NO_END, self._wakes_ns}:
            self._wakes_ns = wakes_ns
            self.clock.at(wakes_ns, partial(self._wake, wakes_ns))

    def _wake(self, at_ns: int) -> None:
        if at_ns == self._wakes_ns:
            self._wakes_ns = NO_END
            self._apply(self.card.look(self.clock.now_ns))


def simulate(works: Sequence[Work], policy: Policy, *, seconds: float = 60.0) -> None:
    """Run for so much virtual time. What each container got is in its `ran`, `waits_ns` and `answers_ns`."""
    run = _Run(works, policy)
    run.clock.run(int(seconds * 1000 * MS))
    run.device.settle()
