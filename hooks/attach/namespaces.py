"""Open network namespaces by path, check them, and enter one only while a socket is made there.

A socket stays in the namespace in which it was made. So a thread enters and returns in two calls, and calls nothing that may
block (a driver) in between. There is no fork: gRPC has threads. A path is first opened as a name only (O_PATH), so that a file
that is not the kernel's is never really opened. The checked descriptor is the one that is used.

Source: namespaces(7), setns(2), ioctl_ns(2) NS_GET_NSTYPE. `os.setns` exists from Python 3.12.

Tests: tests/node/test_netlink.py
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final

from hooks.attach.kernel import KernelError, NetnsMissingError, attempting
from hooks.model.attachment import NetnsId

_CLONE_NEWNET: Final = 0x40000000
_NS_GET_NSTYPE: Final = 0xB703

# ESRCH and ENOENT mean that the process or its namespace has ended; ENOTDIR and ELOOP, that another file is at the path now.
_MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ELOOP})

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def read_netns_id(netns: str) -> NetnsId | None:
    """Return the id of the network namespace at this path; None if the path has none (any more). Keep no descriptor open. Raise
    KernelError."""
    fd = _open(netns)
    if fd is None:
        return None
    try:
        return _id_of(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened(netns: str, wanted: NetnsId | None = None) -> Iterator[int]:
    """Yield a descriptor of the namespace at this path, which keeps it alive. Raise NetnsMissingError if there is none, or not
    the wanted one. Raise KernelError if it is the calling thread's own: no device may be moved into the host's by mistake."""
    fd = _open(netns)
    if fd is None:
        raise NetnsMissingError(f"cannot enter {netns}: there is no network namespace any more")
    try:
        result = _id_of(fd)
        if wanted is not None and result != wanted:
            raise NetnsMissingError(
                f"cannot enter {netns}: another namespace is there now, {result.device}:{result.inode} and not"
                f" {wanted.device}:{wanted.inode}"
            )
        with own() as host:
            if result == _id_of(host):
                raise KernelError(f"cannot enter {netns}: it is the host's network namespace")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def own() -> Iterator[int]:
    """Yield a descriptor of the namespace of the calling thread."""
    with attempting("open the network namespace of the host"):
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def inside(fd: int) -> Iterator[None]:
    """Put the calling thread, and no other, into this namespace until the context ends. Raise OSError."""
    with own() as back:
        enter(fd, _CLONE_NEWNET)
        try:
            yield
        finally:
            enter(back, _CLONE_NEWNET)


def _open(netns: str) -> int | None:
    with attempting(f"open the network namespace {netns}"):
        try:
            name = os.open(netns, os.O_PATH | os.O_CLOEXEC)
        except OSError as e:
            if e.errno in _MISSING_ERRNOS:
                return None
            raise
        try:
            # After an unmount, /run/netns/<name> is an empty regular file, and the namespace itself looks like one too.
            if not stat.S_ISREG(os.fstat(name).st_mode):
                return None
            fd = os.open(f"/proc/thread-self/fd/{name}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(name)
    if _is_network_namespace(fd):
        return fd
    os.close(fd)
    return None


def _is_network_namespace(fd: int) -> bool:
    try:
        return fcntl.ioctl(fd, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:  # ENOTTY: not a file of nsfs
        return False


def _id_of(fd: int) -> NetnsId:
    result = os.fstat(fd)
    return NetnsId(device=result.st_dev, inode=result.st_ino)


def enter(fd: int, kind: int = 0) -> None:
    """Put the calling thread into the namespace, which must be of this kind; 0: of any kind. Raise OSError."""
    if _LIBC.setns(fd, kind) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
