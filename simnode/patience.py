"""Wait for other processes by their progress, not by a clock.

A wait ends when its condition holds. It fails at once when a part that it needs has ended; when this process and all that it
started have been idle for `idle_s` in total; and, as the last resort, after LAST_RESORT_S. A process that runs, or waits for a
CPU or a disk, is not idle, however long that takes on a busy machine. The error has the last lines of each part's log.

Source: proc(5), the states R and D of a thread in /proc/PID/task/TID/stat.
"""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from lading.errors import HostError

IDLE_S: Final = 60.0  # longer than every sleep and lease in the daemons, so that a wait outlives them
LAST_RESORT_S: Final = 600.0
_FIRST_S, _LONGEST_S = 0.01, 0.2  # seconds between two checks
_BUSY: Final = 0.1  # the part of a CPU above which this process itself works
_PROC: Final = Path("/proc")
_LINES: Final = 15


class WaitedPart(Protocol):
    """Declare a process whose end makes a wait fail."""

    @property
    def name(self) -> str: ...

    @property
    def running(self) -> bool: ...

    @property
    def status(self) -> int | None: ...

    @property
    def log(self) -> Path: ...


def tail(log: Path, lines: int = _LINES) -> str:
    """Return the last lines of a log file; empty if there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def wait_until(
    holds: Callable[[], object], what: str, *parts: WaitedPart, idle_s: float = IDLE_S, logs: Sequence[Path] = ()
) -> None:
    """Wait until the condition holds. Raise HostError, with the last lines of the parts' logs and of `logs`, if the condition
    is not expected to hold any more."""
    wait = Wait(what, parts, idle_s=idle_s, logs=logs)
    while not holds():
        time.sleep(wait.scan())


async def await_until(
    holds: Callable[[], object], what: str, *parts: WaitedPart, idle_s: float = IDLE_S, logs: Sequence[Path] = ()
) -> None:
    """Wait until the condition, also a coroutine function, holds, as `wait_until` does, on an event loop."""
    wait = Wait(what, parts, idle_s=idle_s, logs=logs)
    while not await _value(holds()):  # noqa: ASYNC110  other processes set no event
        await asyncio.sleep(wait.scan())


class Wait:
    """Track how long a caller has waited for its condition. In a loop, the caller checks the condition, calls `scan`, and
    sleeps for the time that it returns."""

    def __init__(
        self, what: str, parts: Sequence[WaitedPart] = (), *, idle_s: float = IDLE_S, logs: Sequence[Path] = ()
    ) -> None:
        self._what = what
        self._parts = parts
        self._idle_s = idle_s
        self._logs = [*(part.log for part in parts), *logs]
        self._began = time.monotonic()
        self._cpu_s = time.process_time()
        self._idle = 0.0
        self._slept = 0.0

    def scan(self) -> float:
        """Return the seconds until the next check of the condition. Raise HostError when the wait has failed."""
        for part in self._parts:
            if not part.running:
                raise self._failure(f"{part.name} ended with status {part.status}", f"correct what {part.log.name} says")
        cpu_s = time.process_time()
        if cpu_s - self._cpu_s <= _BUSY * self._slept and not any(map(_works, _family())):
            self._idle += self._slept  # not the time that passed: this process may have waited for a CPU itself
        self._cpu_s = cpu_s
        if self._idle > self._idle_s:
            raise self._failure(
                f"nothing worked on it for {self._idle_s:g} s",
                "something hangs: report the logs if it fails again",
            )
        if time.monotonic() - self._began > LAST_RESORT_S:
            raise self._failure(f"it did not come in {LAST_RESORT_S:g} s", "run it again when the machine is less busy")
        self._slept = min(_LONGEST_S, max(_FIRST_S, 1.5 * self._slept))
        return self._slept

    def _failure(self, reason: str, hint: str) -> HostError:
        shown = [f"the last lines of {log}:\n{tail(log) or '(none: it is empty)'}" for log in self._logs]
        return HostError("\n".join([f"cannot wait for {self._what}: {reason}", *shown]), hint=hint)


async def _value(result: object) -> object:
    return await result if inspect.isawaitable(result) else result


def _family() -> Iterator[Path]:
    """Yield the folders of the threads of this process, without the caller's, and of all processes that descend from it."""
    me = os.getpid()
    parents = {}
    for entry in _PROC.glob("[0-9]*"):
        if fields := _fields(entry):
            parents[int(entry.name)] = int(fields[1])
    family = {me}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family:
        for thread in (_PROC / str(pid) / "task").glob("*"):
            if int(thread.name) != threading.get_native_id():
                yield thread


def _works(thread: Path) -> bool:
    return _fields(thread)[:1] in (["R"], ["D"])


def _fields(entry: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the process's name, beginning with its state; empty if the process has
    ended. The name itself may contain spaces."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
