"""Represent a process of a node by its command line in /proc. A process that ends while it is read has an empty one.

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
