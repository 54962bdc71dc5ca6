"""Measure what a process of Lading costs: its highest memory, its descriptors, and its work while it serves a call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


def highest_memory(pid: int) -> int:
    """Return the maximum resident memory in bytes since the start or the last `forget_highest`."""
    return _read_status(pid, "VmHWM")


def resident_memory(pid: int) -> int:
    """Return the present resident memory in bytes."""
    return _read_status(pid, "VmRSS")


def _read_status(pid: int, name: str) -> int:
    """Return the bytes that /proc/PID/status gives, in KiB there."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_highest(pid: int) -> int:
    """Reset the maximum of resident memory to the present value, and return it (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return highest_memory(pid)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Growth:
    """Hold the bytes of a block, which are set at its end."""

    bytes = 0


@contextmanager
def memory_growth(pid: int) -> Iterator[Growth]:
    """Measure how far the process's memory rose in the block above its level before."""
    before, growth = forget_highest(pid), Growth()
    yield growth
    growth.bytes = highest_memory(pid) - before


def cpu_seconds(pid: int) -> float:
    """Return for how long the threads of a process have run on a CPU (kernel: Documentation/scheduler/sched-stats.rst)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def longest_work(pid: int, call: Callable[[], object], times: int) -> float:
    """Return how many seconds of CPU the process spends at most while one of these calls, made one after the other, lasts.

    One call in a hundred is not counted. Unlike the calls' duration, this does not grow with what else the machine does."""
    spent = []
    for _ in range(times):
        began = cpu_seconds(pid)
        call()
        spent.append(cpu_seconds(pid) - began)
    return sorted(spent)[int(times * 0.99)]
