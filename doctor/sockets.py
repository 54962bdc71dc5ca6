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
class SocketSeen:
    path: Path
    daemon: str  # name of the daemon that should serve the socket, such as lading-hooks
    wanted: Access
    found: Access | None = None  # None: the path does not exist
    is_socket: bool = False
    folder: Access | None = None
    holder: Process | None = None  # process that listens; None: no process does
    silence: str = ""  # error text if the holder does not answer; else empty


def decide_socket(seen: SocketSeen) -> Iterator[Finding]:
    restart = f"systemctl restart {seen.daemon}.socket {seen.daemon}"
    if seen.found is None:
        yield failed(f"{seen.path} is not there", mend=restart)
        return
    if not seen.is_socket:
        yield failed(f"{seen.path} is not a socket", mend=f"ls -l {seen.path}, move it away; {restart}")
        return
    yield from _trust(seen, seen.found)
    if seen.holder is None:
        yield failed(f"no process listens at {seen.path}", mend=f"{restart}; journalctl -t {seen.daemon} -n 50")
    elif seen.silence:
        yield failed(f"{seen.holder} listens, but {seen.silence}", mend=f"{restart}; journalctl -t {seen.daemon} -n 50")
    elif seen.holder.pid != _SYSTEMD and not seen.holder.is_named(seen.daemon):
        who = " ".join(seen.holder.argv) or str(seen.holder)
        yield warning(
            f"{seen.path} is answered by {who} (pid {seen.holder.pid}), not by {seen.daemon}", mend=f"ss -xlp src {seen.path}"
        )
    else:
        yield ok(f"{seen.path} is answered; {seen.holder} holds it")


def _trust(seen: SocketSeen, found: Access) -> Iterator[Finding]:
    wanted = seen.wanted
    mend = f"chown {wanted.uid}:{wanted.gid} {seen.path}; chmod {wanted.mode:04o} {seen.path}"
    if found.uid != wanted.uid:
        yield failed(f"{seen.path} belongs to uid {found.uid}, not {wanted.uid}", mend=mend)
    if found.mode & _OTHERS & ~wanted.mode:
        yield failed(f"{seen.path} has mode {found.mode:04o}: others can connect", mend=mend)
    elif (found.gid, found.mode) != (wanted.gid, wanted.mode):
        text = f"gid {found.gid} and mode {found.mode:04o}, not {wanted.gid} and {wanted.mode:04o}"
        yield warning(f"{seen.path} has {text}", mend=f"{mend} (in its unit: SocketGroup=, SocketMode=)")
    folder = seen.folder
    if folder and folder.mode & OTHERS_WRITE and not folder.mode & stat.S_ISVTX:
        parent = seen.path.parent
        yield failed(f"{parent} has mode {folder.mode:04o}: others can replace the socket", mend=f"chmod go-w {parent}")
