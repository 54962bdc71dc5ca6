"""What a process of ours costs: its memory at the highest, its descriptors, and how long a call through it takes meanwhile."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


def highest_memory(pid: int) -> int:
    """Bytes of resident memory at the highest, since the start or the last `forget_highest`."""
    return _read_status(pid, "VmHWM")


def resident_memory(pid: int) -> int:
    """Bytes of resident memory now."""
    return _read_status(pid, "VmRSS")


def _read_status(pid: int, name: str) -> int:
    """Return the bytes that /proc/PID/status gives, in KiB there."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_highest(pid: int) -> int:
    """Sets the highest to what it is now, and answers that (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return highest_memory(pid)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Growth:
    """Bytes, known after the block."""

    bytes = 0


@contextmanager
def memory_growth(pid: int) -> Iterator[Growth]:
    """By how much the process's memory at the highest was above what it was before the block."""
    before, growth = forget_highest(pid), Growth()
    yield growth
    growth.bytes = highest_memory(pid) - before


def percentile_99(call: Callable[[], object], times: int) -> float:
    """Seconds that a call takes, one after the other."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return sorted(took)[int(times * 0.99)]
