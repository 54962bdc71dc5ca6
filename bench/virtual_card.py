"""Simulate containers on one card in virtual time: what share each gets, and how long each waits for a turn.

The device runs kernels one after another. A busy container launches the next kernel while its turn lasts, and asks for the next
turn when the last kernel is done: it knows that half a round trip later. Times are in nanoseconds.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from typing import Final

from shares.card import NO_END, Card, Effects, Token
from shares.policy.model import MILLION, MS, Policy, Share

ROUND_TRIP_NS: Final = 300_000
WINDOW_NS: Final = 1_000 * MS


@dataclass(slots=True, kw_only=True)
class Work:
    """Describe one container's share and work, and record its kernels and waits."""

    name: str
    request: float
    limit: float = 1.0
    kernels_ms: Sequence[float] = (5.0,)  # in turn
    begins_ms: float = 0.0
    pauses_ms: tuple[float, float] | None = None  # idle from the first to the second
    burst_ms: float = 0.0  # device time of a burst, then idle for the rest of `every_ms`; 0: busy always
    every_ms: float = 0.0
    bursts_end_ms: float = math.inf  # busy always from then on

    ran: list[tuple[int, int]] = field(default_factory=list)  # kernels: began, ended
    waits_ns: list[int] = field(default_factory=list)  # from wanting a turn to having it

    def share_of(self, began_ns: int, ended_ns: int) -> float:
        """Return the container's part of the device's time between these moments."""
        busy = sum(max(0, min(end, ended_ns) - max(begin, began_ns)) for begin, end in self.ran)
        return busy / (ended_ns - began_ns)

    def error_in_any_second(self, expected: float, since_ns: int, until_ns: int) -> float:
        """Return the greatest deviation from this share in any second, by steps of a tenth."""
        starts = range(since_ns, until_ns - WINDOW_NS + 1, WINDOW_NS // 10)
        return max(abs(self.share_of(start, start + WINDOW_NS) - expected) for start in starts)


class _Run:
    def __init__(self, works: Sequence[Work], policy: Policy, until_ns: int) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._card: Card[int] = Card(policy)
        self._works = {work.name: work for work in works}
        self._kernels: dict[str, Iterator[float]] = {work.name: cycle(work.kernels_ms) for work in works}
        self._until = dict.fromkeys(self._works, 0)  # the end of its turn, as its page says
        self._wanted: dict[str, int] = {}
        self._running: set[str] = set()
        self._left = {work.name: 0 for work in works}  # device time that is left of the burst
        self._end_ns = until_ns
        self._wakes_ns = NO_END
        self.now_ns = 0
        for work in works:
            self._at(int(work.begins_ms * MS), partial(self._begin, work))

    def run(self) -> None:
        while self._events and self._events[0][0] <= self._end_ns:
            self.now_ns, _, act = heapq.heappop(self._events)
            act()

    def _at(self, at_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), act))

    def _begin(self, work: Work) -> None:
        share = Share(request_ppm=round(work.request * MILLION), limit_ppm=round(work.limit * MILLION))
        self._card.join(work.name, share, self.now_ns)
        self._start_burst(work)

    def _start_burst(self, work: Work) -> None:
        if work.burst_ms and self.now_ns < work.bursts_end_ms * MS:
            self._left[work.name] = int(work.burst_ms * MS)
            self._at(self.now_ns + int(work.every_ms * MS), lambda: self._start_burst(work))
        if work.name not in self._running and work.name not in self._wanted:
            self._want(work)

    def _want(self, work: Work) -> None:
        self._wanted[work.name] = self.now_ns
        estimate_ns = int(work.kernels_ms[0] * MS)
        self._at(self.now_ns + ROUND_TRIP_NS // 2, lambda: self._do(self._card.want(work.name, 0, estimate_ns, 0, self.now_ns)))

    def _release(self, work: Work) -> None:
        self._running.discard(work.name)
        self._at(self.now_ns + ROUND_TRIP_NS // 2, lambda: self._do(self._card.release(work.name, 0, 0, self.now_ns)))

    def _do(self, effects: Effects[int]) -> None:
        for effect in effects:
            if isinstance(effect, Token):
                continue
            self._until[effect.container] = effect.until_ns
            work = self._works[effect.container]
            if effect.until_ns > self.now_ns and work.name in self._wanted and self._card.holder == work.name:
                self._at(self.now_ns + ROUND_TRIP_NS // 2, partial(self._got, work))
        wakes_ns = self._card.wake_ns()
        if wakes_ns not in {NO_END, self._wakes_ns}:
            self._wakes_ns = wakes_ns
            self._at(max(wakes_ns, self.now_ns), partial(self._wake, wakes_ns))

    def _wake(self, at_ns: int) -> None:
        if at_ns == self._wakes_ns:
            self._wakes_ns = NO_END
            self._do(self._card.look(self.now_ns))

    def _got(self, work: Work) -> None:
        if work.name not in self._wanted:
            return
        work.waits_ns.append(self.now_ns - self._wanted.pop(work.name))
        self._running.add(work.name)
        self._launch(work)

    def _launch(self, work: Work) -> None:
        """Run the next kernel, if the turn lasts and there is work; else renew, or release."""
        if self._idle(work):
            self._release(work)
        elif self.now_ns >= self._until[work.name]:
            self._running.discard(work.name)
            self._want(work)
        else:
            took_ns = int(next(self._kernels[work.name]) * MS)
            work.ran.append((self.now_ns, self.now_ns + took_ns))
            self._left[work.name] -= took_ns
            self._at(self.now_ns + took_ns, lambda: self._launch(work))

    def _idle(self, work: Work) -> bool:
        if work.burst_ms and self.now_ns < work.bursts_end_ms * MS:
            return self._left[work.name] <= 0
        if work.pauses_ms and work.pauses_ms[0] * MS <= self.now_ns < work.pauses_ms[1] * MS:
            self._at(int(work.pauses_ms[1] * MS), lambda: self._start_burst(work))
            return True
        return False


def simulate(works: Sequence[Work], policy: Policy, *, seconds: float = 60.0) -> None:
    """Run for so much virtual time. What each container got is in its `ran` and `waits_ns`."""
    _Run(works, policy, int(seconds * 1000 * MS)).run()
