"""Simulate the device of one card in virtual time, as contexts of several processes share it. Times are in nanoseconds.

The device works for one context at a time. While several have work, each gets a slice, and a switch between two of them takes
time. A context without work gives way after a moment. The figures are those of an H200 with driver 580, read on 2026-11-20.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from shares.policy.model import MS

US: Final = 1_000
SLICE_NS: Final = MS
SWITCH_NS: Final = 93 * US
GIVE_WAY_NS: Final = 7 * US


class Clock:
    """Hold virtual time, and call functions at their times."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, at_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(at_ns, self.now_ns), next(self._order), call))

    def after(self, ns: int, call: Callable[[], None]) -> None:
        self.at(self.now_ns + ns, call)

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, call = heapq.heappop(self._events)
            call()


class Context:
    """Hold the queued kernels of one process, which run one after another."""

    def __init__(self, ran: list[tuple[int, int]], done: Callable[[], None]) -> None:
        """Create a context. `ran` gets the begin and the end of each time for which the device works for it, and `done` is
        called after each kernel."""
        self.kernels: deque[int] = deque()  # time that each has left
        self.ran = ran
        self.done = done

    def queued_ns(self) -> int:
        return sum(self.kernels)


class Device:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._contexts: list[Context] = []
        self._current: Context | None = None
        self._began_ns: int | None = None  # since when the current context works, uncounted; None: no kernel runs
        self._slice_ns = 0  # when the slice of the current context began
        self._switches = False
        self._plan = 0  # number of the latest plan: events of earlier ones do nothing

    def add(self, context: Context) -> None:
        self._contexts.append(context)

    def submit(self, context: Context, ns: int) -> None:
        first = not context.kernels
        context.kernels.append(ns)
        if self._began_ns is not None:
            if self._current is not context and first:
                self._plan_slice()
        elif self._switches:
            return
        elif self._current is context:
            self._slice_ns = self._clock.now_ns
            self._run()
        elif self._current is None or not self._current.kernels:
            self._switch_to(context)

    def settle(self) -> None:
        """Take the time up to now off the kernel that runs."""
        now_ns = self._clock.now_ns
        if self._began_ns is None or now_ns == self._began_ns:
            return
        assert self._current
        self._current.kernels[0] -= now_ns - self._began_ns
        self._current.ran.append((self._began_ns, now_ns))
        self._began_ns = now_ns

    def _at(self, at_ns: int, call: Callable[[], None]) -> None:
        plan = self._plan
        self._clock.at(at_ns, lambda: call() if plan == self._plan else None)

    def _others(self) -> list[Context]:
        """Return the other contexts that have work, beginning with the next one in turn."""
        at = self._contexts.index(self._current) + 1 if self._current else 0
        return [one for one in self._contexts[at:] + self._contexts[:at] if one.kernels and one is not self._current]

    def _run(self) -> None:
        assert self._current
        self._plan += 1
        self._began_ns = self._clock.now_ns
        self._at(self._began_ns + self._current.kernels[0], self._finish)
        if self._others():
            self._plan_slice()

    def _plan_slice(self) -> None:
        past_ns = self._clock.now_ns - self._slice_ns
        self._at(self._slice_ns + (past_ns // SLICE_NS + 1) * SLICE_NS, self._end_slice)

    def _end_slice(self) -> None:
        assert self._current
        self.settle()
        others = self._others()
        if self._began_ns is not None and others and self._current.kernels[0] > 0:
            self._switch_to(others[0])

    def _switch_to(self, context: Context) -> None:
        self._plan += 1
        self._current, self._began_ns, self._switches = context, None, True
        self._at(self._clock.now_ns + SWITCH_NS, self._arrive)

    def _arrive(self) -> None:
        self._switches, self._slice_ns = False, self._clock.now_ns
        self._give_way()

    def _give_way(self) -> None:
        assert self._current
        if self._current.kernels:
            self._run()
        elif others := self._others():
            self._switch_to(others[0])

    def _finish(self) -> None:
        self.settle()
        context = self._current
        assert context
        context.kernels.popleft()
        self._began_ns = None
        if context.kernels:
            self._run()
        else:
            self._plan += 1
            self._at(self._clock.now_ns + GIVE_WAY_NS, self._give_way)
        context.done()
