"""The folder of a rig with VFs: what the rig, the daemon under it and tests say to one another, and what outlives a daemon."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "LADING_VF_RIG"  # in the daemon's environment: where it is


@dataclass(frozen=True, slots=True)
class RigFolder:
    path: Path

    @property
    def netns(self) -> Path:
        return self.path / "netns"

    @property
    def pf_table(self) -> Path:
        return self.path / "pf-table.json"

    @property
    def rdma(self) -> Path:
        """Exclusive mode where it is there: which namespace each ibdev is in that is not in the host's."""
        return self.path / "rdma.json"

    @property
    def clock(self) -> Path:
        """By how many seconds the daemon's clock is ahead."""
        return self.path / "clock"

    @property
    def no_parents(self) -> Path:
        """Where it is there, the kernel does not tell which function a network device is of: one before 5.14."""
        return self.path / "no-parents"

    @property
    def failing(self) -> Path:
        """Names of kernel calls that are to fail, one a line."""
        return self.path / "failing"

    @property
    def kill_at(self) -> Path:
        """At which point, counted from 1, the daemon is to be killed."""
        return self.path / "kill-at"

    @property
    def points(self) -> Path:
        """The points that were passed since `kill_at` was written, one a line."""
        return self.path / "points"

    @property
    def stay_dead(self) -> Path:
        """While it is there, a daemon that was killed at a point is not started again."""
        return self.path / "stay-dead"

    @property
    def pid(self) -> Path:
        """Of the daemon, which is another one after it was killed at a point."""
        return self.path / "pid"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def replace_text(path: Path, text: str) -> None:
    """By rename: a reader never sees half of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
