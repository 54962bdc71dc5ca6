"""Measure how slow this node is now, so that a command does not mistake a slow node for one on which something hangs.

Python starts and imports a command's modules within START_S on a quiet node. On a node whose processors are busy, slow or
emulated, this takes longer in the same proportion as the answers of the node's other processes. So a command measures its own
start, and waits that many times as long. The start includes what came before `exec` in the same process; the factor is bounded.

Source: proc_pid_stat(5), field 22; clock_gettime(2), CLOCK_BOOTTIME.
"""

import os
import time
from pathlib import Path
from typing import Final

START_S: Final = 1.0  # measured: lading-doctor takes 0.9 s of CPU time to start, nearly all for its imports
MOST: Final = 10.0
_SLOW: Final = 1.5
_START_TIME: Final = 19  # index of the field after the command's name, which may have spaces


def measure_slowness() -> float:
    """Return the start time of this process as a multiple of START_S, between 1 and MOST. A command calls this function once,
    after its imports."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return decide_slowness(time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def decide_slowness(start_s: float) -> float:
    return min(max(1.0, start_s / START_S), MOST)


def describe_slowness(slowness: float) -> str:
    """Return the reason why a wait was longer than usual, in words; an empty text on a quiet node."""
    return (
        f"; this node is slow now: this command took {slowness:.1f} times as long to start as usual"
        if is_slow(slowness)
        else ""
    )


def is_slow(slowness: float) -> bool:
    return slowness > _SLOW
