"""Limit an exception about one object to that object.

Central's tasks handle pods, gangs, quotas, nodes and reports, one after the other. An exception about an object is an error in
central's code. It must be visible, but not fatal. So the log records the object's name and the traceback, a metric counts the
exception, and the object is set aside. The pause is FIRST_S, doubles with each further failure, and is at most LONGEST_S.
Meanwhile the task handles the other objects. A failure without an object ends the whole task, which restarts after such a
pause.

A task that handles objects does this for each object:

    if not faults.sets_aside(Work.GANGS, name):
        with faults.handling(Work.GANGS, name):
            ...
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lading.log import Event, Log

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST: Final = 10_000  # maximum remembered objects; each costs about 300 bytes
QUIET_S: Final = 10.0  # minimum seconds between two log records about one line of code, whatever the number of objects
LONGEST_TRACEBACK: Final = 4096  # maximum characters; the end of the traceback is kept


class Work(StrEnum):
    """Name the parts of central that handle objects: values of a metric's label."""

    WATCH = "watch"
    START = "start"
    EXTENDER = "extender"
    BINDINGS = "bindings"
    REQUEUE = "requeue"
    EVICTIONS = "evictions"
    GANGS = "gangs"
    PATIENCE = "patience"
    DEVICE_HEALTH = "device-health"
    SHARE_BYPASS = "share-bypass"
    ADMISSION_CHECKS = "admission-checks"
    QUOTAS = "quotas"
    QUOTA_STATUS = "quota-status"
    TAKE_BACK = "take-back"
    EVENTS = "events"
    EXPIRY = "expiry"
    STATISTICS = "statistics"
    GPU_HOURS = "gpu-hours"


@dataclass(slots=True)
class _Failing:
    """Remember an object whose handling raised an exception."""

    failures: int = 0  # number of consecutive failures
    until: float = 0.0  # time at which the object is handled again


class Faults:
    def __init__(self, *, clock: Callable[[], float], log: Log, counts: Counter[Work] | None = None) -> None:
        """Create the record of failing objects. `clock`: monotonic seconds. `counts`: exceptions by part, which continue from
        one leadership to the next."""
        self.counts: Counter[Work] = Counter() if counts is None else counts
        self._clock = clock
        self._log = log
        self._failing: dict[tuple[Work, str], _Failing] = {}
        self._quiet: dict[str, tuple[float, int]] = {}  # end of the quiet time and omitted records, by line of code

    def sets_aside(self, work: Work, name: str) -> bool:
        """Return whether the object is not to be handled now."""
        failing = self._failing.get((work, name)) if self._failing else None
        return failing is not None and self._clock() < failing.until

    @contextmanager
    def handling(self, work: Work, name: str) -> Iterator[None]:
        """Handle one object in this block. An exception ends the block and nothing else."""
        try:
            yield
        except Exception as e:  # noqa: BLE001  any error in central's code, and it is logged with its traceback
            self.failed(work, name, e)
        else:
            if self._failing:
                self._failing.pop((work, name), None)

    async def keep(self, work: Work, run: Callable[[], Awaitable[None]], *, name: str = "") -> None:
        """Run a task. After an exception, restart it after a growing pause."""
        while True:
            began = self._clock()
            try:
                return await run()
            except Exception as e:  # noqa: BLE001  any error in central's code, and it is logged with its traceback
                if self._clock() - began > LONGEST_S:
                    self._failing.pop((work, name), None)
                pause_s = self.failed(work, name, e)
            await asyncio.sleep(pause_s)

    def failed(self, work: Work, name: str, error: Exception) -> float:
        """Record an exception about the object. Return for how many seconds it is set aside."""
        self.counts[work] += 1
        failing = self._failing.get((work, name))
        if failing is None:
            if len(self._failing) >= MOST:
                self._forget_some()
            failing = self._failing[work, name] = _Failing()
        pause_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failing.failures, 32))
        failing.failures += 1
        failing.until = self._clock() + pause_s
        self._log_failure(work, name, error, pause_s)
        return pause_s

    def set_aside(self) -> Counter[Work]:
        """Return how many objects are set aside now, by part."""
        now = self._clock()
        return Counter(work for (work, _), failing in self._failing.items() if now < failing.until)

    def _forget_some(self) -> None:
        now = self._clock()
        self._failing = {key: failing for key, failing in self._failing.items() if now < failing.until}
        while len(self._failing) >= MOST:
            del self._failing[next(iter(self._failing))]

    def _log_failure(self, work: Work, name: str, error: Exception, pause_s: float) -> None:
        where = _where(error)
        until, unlogged = self._quiet.get(where, (0.0, 0))
        now = self._clock()
        if now < until:
            self._quiet[where] = until, unlogged + 1
            return
        self._quiet[where] = now + QUIET_S, 0
        text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
        what = f"cannot handle {work} {name}".rstrip()
        reason = (
            f"{what}: {type(error).__name__}: {error}; it is set aside for {pause_s:g} s; this is an error in lading-central"
        )
        self._log.error(Event.HANDLING_FAILED, reason, work=work, object=name, unlogged=unlogged, traceback=text)


def _where(error: Exception) -> str:
    """Return the line of code that raised the exception."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} {line}"
