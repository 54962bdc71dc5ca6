"""Read what a process has used, as the kernel counts it.

Source: Documentation/scheduler/sched-stats.rst (schedstat: nanoseconds on a CPU, unlike /proc/<pid>/stat, which counts ticks of
10 ms), proc(5).
"""

import contextlib
from pathlib import Path


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of all live threads, in user space and in the kernel, including wake-ups of other processes."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def read_rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0  # a zombie
