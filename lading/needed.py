"""Find the files that a daemon needs and cannot open, and name the setting of its unit that allows it.

Files are checked with access(2), which opens nothing, because a hanging driver blocks only an open(2). The answer of access(2)
includes read-only mounts and the device cgroup.

Source: access(2); systemd.exec(5) ("Sandboxing", "Capabilities"), systemd.resource-control(5) (DeviceAllow=).
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HIDDEN: Final = {
    "/home": "ProtectHome=no",
    "/root": "ProtectHome=no",
    "/run/user": "ProtectHome=no",
    "/tmp": "PrivateTmp=no",  # noqa: S108  as systemd has it
    "/var/tmp": "PrivateTmp=no",  # noqa: S108
    "/dev": "PrivateDevices=no",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    path: Path
    what: str  # use of the file, such as kubeconfig or keys.k1
    mode: int = os.R_OK
    optional: bool = False  # a missing file is no problem, or another condition reports it


def find_denied(needed: Iterable[Needed]) -> Iterator[str]:
    """Yield path, error and unit setting of each file that cannot be opened. Blocks no longer than stat(2)."""
    for one in needed:
        error = _error(one)
        if error and not (one.optional and error == errno.ENOENT):
            yield f"{one.path} ({one.what}): {os.strerror(error)} (in the unit: {_setting(one.path, error)})"


def _error(one: Needed) -> int:
    """Return the errno that opening the file would give, or 0: os.access() itself returns no errno."""
    try:
        status = one.path.stat()
        read_only = os.statvfs(one.path).f_flag & os.ST_RDONLY
    except OSError as e:
        return e.errno or errno.EIO
    if os.access(one.path, one.mode):
        return 0
    if one.mode & os.W_OK and read_only:
        return errno.EROFS
    return errno.EPERM if stat.S_ISCHR(status.st_mode) else errno.EACCES


def _setting(path: Path, error: int) -> str:
    if error == errno.EROFS:
        return f"ReadWritePaths={path}"
    if error == errno.EPERM:
        return f"DeviceAllow={path}"
    if hidden := next((setting for folder, setting in _HIDDEN.items() if path.is_relative_to(folder)), ""):
        return hidden
    return f"no InaccessiblePaths=, {'no TemporaryFileSystem=' if error == errno.ENOENT else 'or CAP_DAC_OVERRIDE'}"
