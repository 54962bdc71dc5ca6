"""Simulate the same work on one card as other ways of sharing would run it: a static partition, and a reactive limiter.

* `partition`: each container has its request of the card, and nothing else, as with MIG instances or fixed percentages of MPS:
  a kernel takes as much longer as the part is smaller, and none waits for another.
* `react`: a model of HAMi-core's limiter, by its source (utilization_watcher, commit 078a2d2). All containers launch into one
  queue of the device. Each has a bucket that a launch takes its number of blocks from, however long it runs; below zero it
  looks again each 10 ms. Each 120 ms the bucket gets an amount, which grows or shrinks by the difference of the limit and the
  use of the last second. Its limit is the request, because it has no other notion.

Sources: Project-HAMi/HAMi-core, src/multiprocess/multiprocess_utilization_watcher.c.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
from typing import Final

from bench.virtual_card import Work, simulate
from shares.policy.fair import Fair
from shares.policy.model import MS

MULTIPROCESSORS: Final = 132  # multiprocessors of an H100
THREADS: Final = 2048  # threads of each multiprocessor
MOST: Final = MULTIPROCESSORS * THREADS * 32  # the size of the bucket
BLOCKS: Final = 1024  # blocks of each kernel
SCAN_NS: Final = 10 * MS
ADJUST_NS: Final = 120 * MS
SECOND: Final = 1000 * MS


def partition(works: Sequence[Work], *, seconds: float) -> None:
    for work in works:
        stretched = replace(
            work,
            request=1.0,
            limit=1.0,
            kernels_ms=[kernel / work.request for kernel in work.kernels_ms],
            burst_ms=work.burst_ms / work.request,
            ran=work.ran,
            waits_ns=work.waits_ns,
        )
        simulate([stretched], Fair(), seconds=seconds)


@dataclass(slots=True)
class _Limited:
    work: Work
    kernels: Iterator[float]
    bucket: int = 0
    gets: int = 0
    most: int = MOST
    burst_ns: int = 0  # left of it
    ran: deque[tuple[int, int]] = field(default_factory=deque)  # kernels of the last second: began, ended

    def use_percent(self, now_ns: int) -> int:
        since = now_ns - SECOND
        while self.ran and self.ran[0][1] <= since:
            self.ran.popleft()
        return round(100 * sum(max(0, min(end, now_ns) - max(begin, since)) for begin, end in self.ran) / SECOND)

    def adjust(self, now_ns: int) -> None:
        limit, use = round(100 * self.work.request), self.use_percent(now_ns)
        if self.gets == self.most and self.bucket < 0:
            self.most *= 2
            self.gets = self.most
        distance = max(5, abs(limit - use))
        step = MULTIPROCESSORS**2 * THREADS * distance // 2560
        if distance > limit // 2:
            step = step * distance * 2 // (limit + 1)
        self.gets = min(self.most, self.gets + step) if use <= limit else max(0, self.gets - step)
        self.bucket = min(self.most, self.bucket + self.gets)


class _Device:
    def __init__(self, works: Sequence[Work], until_ns: int) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._until_ns = until_ns
        self._free_ns = 0  # the device has done all launched work then
        self._now_ns = 0
        for work in works:
            one = _Limited(work, cycle(work.kernels_ms))
            began_ns = int(work.begins_ms * MS)
            self._at(began_ns, partial(self._begin, one))
            self._at(began_ns + ADJUST_NS, partial(self._adjust, one))

    def run(self) -> None:
        while self._events and self._events[0][0] <= self._until_ns:
            self._now_ns, _, act = heapq.heappop(self._events)
            act()

    def _at(self, at_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), act))

    def _adjust(self, one: _Limited) -> None:
        one.adjust(self._now_ns)
        self._at(self._now_ns + ADJUST_NS, partial(self._adjust, one))

    def _begin(self, one: _Limited) -> None:
        idle = one.burst_ns <= 0
        if one.work.burst_ms:
            one.burst_ns += int(one.work.burst_ms * MS)
            self._at(self._now_ns + int(one.work.every_ms * MS), partial(self._begin, one))
        if idle:
            self._launch(one, self._now_ns)

    def _launch(self, one: _Limited, wanted_ns: int) -> None:
        pauses = one.work.pauses_ms
        if pauses and pauses[0] * MS <= self._now_ns < pauses[1] * MS:
            again_ns = int(pauses[1] * MS)
            self._at(again_ns, partial(self._launch, one, again_ns))
        elif one.bucket < 0:
            self._at(self._now_ns + SCAN_NS, partial(self._launch, one, wanted_ns))
        else:
            one.bucket -= BLOCKS
            took_ns = int(next(one.kernels) * MS)
            begins_ns = max(self._now_ns, self._free_ns)
            self._free_ns = begins_ns + took_ns
            ran = (begins_ns, self._free_ns)
            one.work.ran.append(ran)
            one.ran.append(ran)
            one.work.waits_ns.append(begins_ns - wanted_ns)
            self._at(self._free_ns, partial(self._done, one, took_ns))

    def _done(self, one: _Limited, took_ns: int) -> None:
        one.burst_ns -= took_ns
        if not one.work.burst_ms or one.burst_ns > 0:
            self._launch(one, self._now_ns)


def react(works: Sequence[Work], *, seconds: float) -> None:
    _Device(works, int(seconds * SECOND)).run()
