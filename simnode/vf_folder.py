"""The folder of a rig with VFs: the files by which the rig, the daemon in it and tests communicate, and the state that outlives
a daemon.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "LADING_VF_RIG"  # in the daemon's environment: the folder's path


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
        """Return the file of exclusive mode, if it exists: the namespace of each ibdev that is not in the host's."""
        return self.path / "rdma.json"

    @property
    def clock(self) -> Path:
        """Return the file with the seconds by which the daemon's clock is ahead."""
        return self.path / "clock"

    @property
    def no_parents(self) -> Path:
        """Return the file whose presence means: the kernel (before 5.14) does not report the function of a network device."""
        return self.path / "no-parents"

    @property
    def failing(self) -> Path:
        """Return the file with names of kernel calls that fail, one a line."""
        return self.path / "failing"

    @property
    def kill_at(self) -> Path:
        """Return the file with the point, counted from 1, at which the daemon is killed."""
        return self.path / "kill-at"

    @property
    def points(self) -> Path:
        """Return the file with the points passed since `kill_at` was written, one a line."""
        return self.path / "points"

    @property
    def stay_dead(self) -> Path:
        """Return the file whose presence means: a daemon that was killed at a point is not started again."""
        return self.path / "stay-dead"

    @property
    def pid(self) -> Path:
        """Return the file with the daemon's pid, which changes after it was killed at a point."""
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
    """Replace the text by rename: a reader never sees half of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
