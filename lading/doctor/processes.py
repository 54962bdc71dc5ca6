"""Processes of a node, by /proc: what they were started with. One that ends while it is looked at is not there.

Source: proc_pid_cmdline(5).
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    argv: tuple[str, ...] = ()  # empty: a kernel thread, or one that ended

    @property
    def program(self) -> str:
        return Path(self.argv[0]).name if self.argv else ""

    def is_named(self, name: str) -> bool:
        """Also where an interpreter runs it."""
        return any(Path(word).name == name for word in self.argv[:3])

    def __str__(self) -> str:
        interpreted = self.program.startswith("python") and len(self.argv) > 1
        return f"{Path(self.argv[1]).name if interpreted else self.program or 'process'} (pid {self.pid})"
