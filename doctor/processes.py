"""Read the processes of a node from /proc. A process that ends while it is read has an empty one.

Source: proc_pid_cmdline(5).

Tests: tests/unit/doctor/test_sockets.py
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    argv: tuple[str, ...] = ()  # command line; empty: a kernel thread, or the process has ended

    @property
    def program(self) -> str:
        return Path(self.argv[0]).name if self.argv else ""

    def is_named(self, name: str) -> bool:
        """Return whether the process runs this program, directly or through an interpreter."""
        return any(Path(word).name == name for word in self.argv[:3])

    def __str__(self) -> str:
        interpreted = self.program.startswith("python") and len(self.argv) > 1
        return f"{Path(self.argv[1]).name if interpreted else self.program or 'process'} (pid {self.pid})"


def read_process(proc: Path, pid: int) -> Process:
    try:
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        text = []
    return Process(pid=pid, argv=tuple(text[:-1]))  # each argument ends in NUL


def find_processes(proc: Path, program: str) -> tuple[Process, ...]:
    """Return the processes that were started as this program, by pid."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    return tuple(process for process in (read_process(proc, pid) for pid in pids) if process.program == program)
