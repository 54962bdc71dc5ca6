"""Open the Unix sockets of a node's daemons, so that only permitted peers can connect, and only one daemon has each socket.
Connect to such a socket.

`listen` takes the socket that systemd bound (LISTEN_FDS), or binds one. Others cannot write the directory, the file never has a
wider mode than requested, and a file left by a dead daemon is replaced. `listen` refuses a path on which a process listens, a
file that is not a socket (links are not followed, nothing is removed), a directory that others can write, and a second
instance. The file stays when the listener, or the server that `serve` returns, is closed. systemd's socket must accept the
calls of the next start, and removing a file could remove the successor's.

Source: unix(7), sd_listen_fds(3). Linux gives a bound file the mode of the socket's descriptor (less the umask).
"""

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from lading.errors import ConfigError, HostError

BACKLOG: Final = 1024  # connections that wait while the daemon starts; Backlog= of its socket unit is not more
_FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START
LONGEST_PATH: Final = 107  # sizeof(sun_path) less its NUL
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
P = TypeVar("P", bound=asyncio.BaseProtocol)


class Peer(NamedTuple):
    pid: int
    uid: int
    gid: int


class Access(NamedTuple):
    """Hold owner and mode of a socket, which decide who may connect: Linux checks write permission on the socket's file."""

    uid: int
    gid: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))


class Listener(socket.socket):
    """Hold a listening socket and the lock that prevents a second instance; closing releases both. Only root and the user of
    this process are accepted; other peers are disconnected, and `rejected` is called."""

    __slots__ = ("lock", "rejected")
    lock: io.FileIO
    rejected: Callable[[Peer], None]

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connection, address = super().accept()
            peer = peer_credentials(connection)
            if peer.uid in {0, os.geteuid()}:
                return connection, address
            connection.close()
            self.rejected(peer)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(AttributeError):  # the listener may not be locked yet
            self.lock.close()


def parse_endpoint(text: str) -> Path:
    """Parse `/run/x.sock` or `unix:///run/x.sock` as a path. Raises ConfigError for anything else."""
    scheme, separator, rest = text.partition("://")
    path = rest if separator else text.removeprefix("unix:")
    hint = "write it as unix:///run/lading/cri.sock or /run/lading/cri.sock"
    if separator and scheme != "unix":
        raise ConfigError(f"cannot use endpoint {text!r}: only Unix sockets are served, not {scheme}", hint=hint)
    if not path.startswith("/"):
        raise ConfigError(f"cannot use endpoint {text!r}: not an absolute path", hint=hint)
    if "\0" in path or len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"cannot use endpoint {text!r}: a socket's path has at most {LONGEST_PATH} bytes and no NUL")
    return Path(path)


def peer_credentials(connection: socket.socket) -> Peer:
    """Return the process that connected, as the kernel saw it at connect(); for a dialled socket, the process that called
    listen()."""
    return Peer(*struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))))


def listen(
    path: Path,
    *,
    mode: int = 0o600,
    directory_mode: int = 0o700,
    like: Path | None = None,
    rejected: Callable[[Peer], None] = lambda _: None,
) -> Listener:
    """Return a non-blocking listening socket at `path`, from systemd or created here. Raises HostError with the reason if it
    cannot.

    `like` is a socket whose owner and mode the new socket gets, if `like` exists. A socket from systemd is not changed:
    `access_problems` reports how it differs."""
    _prepare_directory(path.parent, directory_mode)
    lock = _lock(path)
    try:
        listener = _activated(path) or _created(path, wanted_access(mode=mode, like=like))
    except BaseException:
        lock.close()
        raise
    listener.lock = lock
    listener.rejected = rejected
    listener.setblocking(False)
    return listener


async def serve(make: Callable[[], asyncio.BaseProtocol], listener: socket.socket) -> asyncio.Server:
    """Serve each connection of a listening Unix socket with a protocol of its own. Closing the server closes the socket and
    keeps its file."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 13):  # asyncio of 3.13 removes the file by default, even that of a passed socket
        return await loop.create_unix_server(make, sock=listener, backlog=BACKLOG, cleanup_socket=False)
    return await loop.create_unix_server(make, sock=listener, backlog=BACKLOG)


def wanted_access(*, mode: int = 0o600, like: Path | None = None) -> Access:
    if like is not None:
        with contextlib.suppress(FileNotFoundError):
            result = like.stat()
            if stat.S_ISSOCK(result.st_mode):
                return Access.of(result)
    return Access(os.geteuid(), os.getegid(), mode)


def access_problems(path: Path, *, like: Path | None = None) -> tuple[str, ...]:
    """Return how owner and mode of the socket at `path` differ from what was requested, in words; empty if they do not."""
    wanted = wanted_access(like=like)
    try:
        result = path.lstat()
    except OSError as e:
        return (f"{path}: {e.strerror}",)
    problems = []
    if (result.st_uid, result.st_gid) != (wanted.uid, wanted.gid):
        problems.append(f"{path} belongs to {result.st_uid}:{result.st_gid}, not {wanted.uid}:{wanted.gid}")
    if stat.S_IMODE(result.st_mode) != wanted.mode:
        problems.append(f"{path} has mode {stat.S_IMODE(result.st_mode):04o}, not {wanted.mode:04o}")
    return tuple(problems)


def _prepare_directory(directory: Path, mode: int) -> None:
    try:
        directory.mkdir(mode)
        directory.chmod(mode)  # a umask may have removed bits
    except FileExistsError:
        pass
    except OSError as e:
        raise HostError(f"cannot create {directory}: {e.strerror}") from e
    result = directory.stat()
    for owner in (directory.lstat().st_uid, result.st_uid):  # a link's owner is checked too: the link could be changed later
        if owner not in (0, os.geteuid()):
            raise HostError(f"cannot listen in {directory}: it belongs to uid {owner}, who could replace the socket")
    if result.st_mode & _OTHERS_WRITE and not result.st_mode & stat.S_ISVTX:
        raise HostError(
            f"cannot listen in {directory}: mode {stat.S_IMODE(result.st_mode):04o} lets others replace the socket",
            hint=f"chmod go-w {directory}",
        )


def _lock(path: Path) -> io.FileIO:
    """Lock until the listener is closed or the process ends; the file itself stays, so that all instances lock the same one."""
    name = path.with_name(path.name + ".lock")
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as e:
        raise HostError(f"cannot open {name}: {e.strerror}") from e
    lock = io.FileIO(fd, "r+")
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(lock.close)
        result = os.fstat(fd)
        if not stat.S_ISREG(result.st_mode) or result.st_uid != os.geteuid() or result.st_nlink != 1:
            raise HostError(f"cannot lock {name}: not a regular file of our own", hint=f"look at it with `ls -l {name}`")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            owner = os.read(fd, 20).decode(errors="replace").strip()
            raise HostError(
                f"cannot listen on {path}: another instance has it, process {owner or 'unknown'}",
                hint="stop that one first, or give this one another --listen",
            ) from e
        lock.truncate()
        lock.write(b"%d\n" % os.getpid())
        on_failure.pop_all()
    return lock


def _activated(path: Path) -> Listener | None:
    """Return the socket that systemd bound at `path`; None if systemd passed none to this process
    (LISTEN_PID)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    given = []
    for fd in _passed_descriptors():
        try:
            candidate = Listener(fileno=fd)
        except OSError:
            given.append(f"descriptor {fd} is no socket")
            continue
        problem = _unfit(candidate, path)
        if not problem:
            candidate.set_inheritable(False)
            return candidate
        given.append(f"descriptor {fd} {problem}")
        candidate.detach()  # the descriptor may belong to another listener
    raise HostError(
        f"cannot listen on {path}: systemd passed {'; '.join(given) or 'nothing'}",
        hint="ListenStream= of the socket unit and --listen must name the same path",
    )


def _passed_descriptors() -> Iterator[int]:
    count = os.environ.get("LISTEN_FDS", "")
    if not count.isdecimal():
        raise HostError(f"cannot take sockets from systemd: LISTEN_FDS is {count!r}, not a number")
    yield from range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count))


def _unfit(candidate: socket.socket, path: Path) -> str:
    if candidate.family != socket.AF_UNIX or candidate.type != socket.SOCK_STREAM:
        return "is no Unix stream socket"
    if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen"
    bound = candidate.getsockname()
    if not isinstance(bound, str) or Path(bound).resolve() != path.resolve():
        return f"is bound at {bound!r}"
    return ""


def _created(path: Path, access: Access) -> Listener:
    _clear(path)
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # bind() creates the file with the descriptor's mode. No other user can connect before owner and mode are set below,
        # with any umask, and without changing the umask under another thread.
        os.fchmod(listener.fileno(), access.mode & 0o600)
        listener.bind(os.fspath(path))
        os.chown(path, access.uid, access.gid, follow_symlinks=False)
        path.chmod(access.mode)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise HostError(f"cannot listen on {path}: {e.strerror or e}") from e
    return listener


def _clear(path: Path) -> None:
    """Remove a socket on which no process listens. The lock is held, so no instance of Lading is between bind and listen."""
    try:
        result = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(result.st_mode):
        raise HostError(
            f"cannot listen on {path}: a {_kind(result.st_mode)} is there",
            hint=f"look at it with `ls -l {path}`; it is neither followed nor removed",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dial:
        dial.setblocking(False)
        status = dial.connect_ex(os.fspath(path))
        match status:
            case errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
                return
            case errno.ENOENT:
                return
            case 0:
                holder = f"process {peer_credentials(dial).pid}"
            case _:  # EAGAIN: its backlog is full; EPROTOTYPE: a datagram socket
                holder = f"someone ({os.strerror(status)})"
    raise HostError(f"cannot listen on {path}: {holder} listens there", hint=f"see who with `ss -xlp src {path}`")


def _kind(mode: int) -> str:
    for is_kind, name in ((stat.S_ISLNK, "symbolic link"), (stat.S_ISREG, "regular file"), (stat.S_ISDIR, "directory")):
        if is_kind(mode):
            return name
    return "file that is no socket"


async def dial(protocol: Callable[[], P], path: str) -> P:
    """Connect to the socket at `path` and return the protocol. Raises OSError: EAGAIN if the backlog is full, which asyncio
    takes for a pending connection."""
    transport, made = await asyncio.get_running_loop().create_unix_connection(protocol, path)
    if transport.get_extra_info("peername") is None:
        transport.abort()
        raise OSError(errno.EAGAIN, f"its backlog is full: {os.strerror(errno.EAGAIN)}")
    return made


def accepts(path: str) -> bool:
    """Return whether the socket at `path` accepts a connection. Connecting to a Unix socket does not wait."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except OSError:
        return False
    return True
