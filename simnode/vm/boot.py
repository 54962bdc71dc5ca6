"""Decide whether a boot goes on. A guest that hangs, one of three in trials under TCG, writes nothing more on its console.

Progress is what the console says. A guest on a busy machine is slow, so that the time without progress counts in the seconds of
CPU that QEMU has had. The seconds of the clock count only for a guest that wants no CPU: it waits for something that does not
come. Pure: the caller reads the values. Source: /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SILENT_CPU_S: Final = 120.0  # a whole boot takes about 100, and the longest silence in one about 20
IDLE_S: Final = 60.0
_BUSY: Final = 0.05  # a guest that wants less of a CPU waits for something


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at_s: float
    cpu_s: float  # CPU time of all threads of QEMU
    wanted_s: float  # CPU time, and the time that they waited for a CPU
    console_bytes: int


class BootWatch:
    def __init__(self, first: Sample) -> None:
        self._progress = self._active = first

    def hangs(self, now: Sample) -> bool:
        """Return whether the boot should be given up."""
        if now.console_bytes != self._progress.console_bytes:
            self._progress = self._active = now
        elif now.wanted_s - self._active.wanted_s > _BUSY * (now.at_s - self._active.at_s):
            self._active = now
        return now.cpu_s - self._progress.cpu_s > SILENT_CPU_S or now.at_s - self._active.at_s > IDLE_S


def parse_schedstat(threads: Iterable[str]) -> tuple[float, float]:
    """Return the seconds of CPU that threads have had, and these with the seconds that they have waited for a CPU."""
    had = waited = 0
    for fields in map(str.split, threads):
        had += int(fields[0])
        waited += int(fields[1])
    return had / 1e9, (had + waited) / 1e9
