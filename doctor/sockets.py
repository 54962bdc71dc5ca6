"""Check a Unix socket: which process holds the socket, whether a daemon answers, and whether other users could use or replace
the socket.

Take a reading of the path; return verdicts. systemd holds a socket that a systemd unit created, and only an answer shows that a
daemon serves it.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor.config import OTHERS_WRITE
from doctor.processes import Process
from lading.checks.model import Finding, failed, ok, warning
from lading.sockets import Access

_SYSTEMD: Final = 1
_OTHERS: Final = 0o007


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketReading:
    path: Path
    daemon: str  # name of the daemon that should serve the socket, such as lading-hooks
    wanted: Access
    access: Access | None = None  # None: the path does not exist
    is_socket: bool = False
    folder: Access | None = None
    holder: Process | None = None  # process that listens; None: no process does
    silence: str = ""  # error text if the holder does not answer; else empty


def decide_socket(reading: SocketReading) -> Iterator[Finding]:
    restart = f"systemctl restart {reading.daemon}.socket {reading.daemon}"
    if reading.access is None:
        yield failed(f"{reading.path} is not there", mend=restart)
        return
    if not reading.is_socket:
        yield failed(f"{reading.path} is not a socket", mend=f"ls -l {reading.path}, move it away; {restart}")
        return
    yield from _trust(reading, reading.access)
    if reading.holder is None:
        yield failed(f"no process listens at {reading.path}", mend=f"{restart}; journalctl -t {reading.daemon} -n 50")
    elif reading.silence:
        yield failed(
            f"{reading.holder} listens, but {reading.silence}", mend=f"{restart}; journalctl -t {reading.daemon} -n 50"
        )
    elif reading.holder.pid != _SYSTEMD and not reading.holder.is_named(reading.daemon):
        who = " ".join(reading.holder.argv) or str(reading.holder)
        yield warning(
            f"{reading.path} is answered by {who} (pid {reading.holder.pid}), not by {reading.daemon}",
            mend=f"ss -xlp src {reading.path}",
        )
    else:
        yield ok(f"{reading.path} is answered; {reading.holder} holds it")


def _trust(reading: SocketReading, access: Access) -> Iterator[Finding]:
    wanted = reading.wanted
    mend = f"chown {wanted.uid}:{wanted.gid} {reading.path}; chmod {wanted.mode:04o} {reading.path}"
    if access.uid != wanted.uid:
        yield failed(f"{reading.path} belongs to uid {access.uid}, not {wanted.uid}", mend=mend)
    if access.mode & _OTHERS & ~wanted.mode:
        yield failed(f"{reading.path} has mode {access.mode:04o}: others can connect", mend=mend)
    elif (access.gid, access.mode) != (wanted.gid, wanted.mode):
        text = f"gid {access.gid} and mode {access.mode:04o}, not {wanted.gid} and {wanted.mode:04o}"
        yield warning(f"{reading.path} has {text}", mend=f"{mend} (in its unit: SocketGroup=, SocketMode=)")
    folder = reading.folder
    if folder and folder.mode & OTHERS_WRITE and not folder.mode & stat.S_ISVTX:
        parent = reading.path.parent
        yield failed(f"{parent} has mode {folder.mode:04o}: others can replace the socket", mend=f"chmod go-w {parent}")
