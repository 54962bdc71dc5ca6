"""Check a daemon's own configuration file: whether it is valid, and whether only root can change it."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.checks.model import Finding, failed, ok, skipped
from lading.errors import ConfigError
from lading.sockets import Access

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReading:
    daemon: str
    path: Path
    access: Access | None = None  # None: there is no such file, or this process may not read it
    problem: ConfigError | None = None

    @property
    def is_denied(self) -> bool:
        """Return whether this process lacks permission to read the configuration, or a file that it names."""
        return self.problem is not None and isinstance(self.problem.__cause__, PermissionError)


def can_be_changed(access: Access | None) -> bool:
    """Return whether users other than root can change a file with this access."""
    return access is not None and (access.uid != 0 or bool(access.mode & OTHERS_WRITE))


def decide_config(reading: ConfigReading) -> Iterator[Finding]:
    if reading.problem is not None:
        what = f"{reading.problem.message}; the other checks use the valid part of the file, and the defaults"
        if reading.is_denied:
            yield skipped(what, mend="run this as root")
            return
        yield failed(what, mend=reading.problem.hint or f"{reading.daemon} --check-config --config {reading.path}")
    if reading.access and can_be_changed(reading.access):
        what = (
            f"{reading.path} belongs to uid {reading.access.uid} and has mode {reading.access.mode:04o}: "
            "other users than root can change it"
        )
        yield failed(what, mend=f"chown root {reading.path}; chmod go-w {reading.path}")
    elif reading.problem is None:
        yield ok(f"{reading.path} is valid" if reading.access else f"there is no {reading.path}: the defaults apply")
