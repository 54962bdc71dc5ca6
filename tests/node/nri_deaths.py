"""End a plugin in different ways while the runtime asks it about containers.

Each function takes the plugin's process, and a function that creates two containers at once. It returns when the plugin has
ended, or was dropped by the runtime, and both calls are answered. Unread bytes on the plugin's connection show that the runtime
has asked.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simnode.cri import Container, CriError
from simnode.daemons import LadingNode
from tests.node.site import eventually

Answer = Container | CriError
Ask = Callable[[], list[Future[Answer]]]

_CREATES_S: Final = 0.15  # the time that two CreateContainer calls take
_PIDFD_GETFD: Final = 438
_CHANCE: Final = random.Random(1)  # noqa: S311  moments of a test


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    die: Callable[[LadingNode, Ask], list[Future[Answer]]]
    answers_nothing: bool = False  # the plugin certainly answers no question


def _killed_before(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    lading.hooks.kill()
    return _answered(ask())


def _killed_while(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    with _stands_still(lading) as connection:
        asking = ask()
        _await_question(connection)
        assert not any(one.done() for one in asking), "it was answered by a process that stands still"
        lading.hooks.kill()
    return _answered(asking)


def _killed_after(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    asking = _answered(ask())
    lading.hooks.kill()
    return asking


def _killed_at_some_moment(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    asking = ask()
    time.sleep(_CHANCE.uniform(0, _CREATES_S))  # any moment, so none to wait for
    lading.hooks.kill()
    return _answered(asking)


def _terminated(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    asking = ask()
    time.sleep(_CHANCE.uniform(0, _CREATES_S))  # any moment, so none to wait for
    lading.hooks.stop()
    return _answered(asking)


def _stopped(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    """Suspend the plugin until the runtime drops it, then let it continue."""
    with _stands_still(lading) as connection:
        asking = ask()
        _await_question(connection)
        return _answered(asking)


def _closed(lading: LadingNode, ask: Ask) -> list[Future[Answer]]:
    with _stands_still(lading) as connection:
        asking = ask()
        _await_question(connection)
        connection.shutdown(socket.SHUT_RDWR)
        return _answered(asking)


DEATHS: Final = {
    "killed before it is asked": Death(die=_killed_before, answers_nothing=True),
    "killed while it is asked": Death(die=_killed_while, answers_nothing=True),
    "killed after it has answered": Death(die=_killed_after),
    "killed at some moment": Death(die=_killed_at_some_moment),
    "ended by SIGTERM at some moment": Death(die=_terminated),
    "stopped past the time limit": Death(die=_stopped, answers_nothing=True),
    "connection closed while it is asked": Death(die=_closed, answers_nothing=True),
}


def _answered(asking: list[Future[Answer]]) -> list[Future[Answer]]:
    wait(asking)
    return asking


@contextlib.contextmanager
def _stands_still(lading: LadingNode) -> Iterator[socket.socket]:
    """Suspend the plugin for the block, and yield its connection to the runtime."""
    pid = lading.hooks.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with _take_connection(pid, str(lading.nri)) as connection:
            yield connection
    finally:
        if lading.hooks.running:
            os.kill(pid, signal.SIGCONT)


def _await_question(connection: socket.socket) -> None:
    def asked() -> None:
        unread = fcntl.ioctl(connection, termios.FIONREAD, bytes(4))
        assert int.from_bytes(unread, "little") > 0

    eventually(asked)


def _take_connection(pid: int, path: str) -> socket.socket:
    """Return a descriptor of our own for a process's connection to the Unix socket at that path."""
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if entry.readlink().name.startswith("socket:"):
                one = socket.socket(fileno=_libc().syscall(_PIDFD_GETFD, process, int(entry.name), 0))
                if _leads_to(one) == path:
                    return one
                one.close()
    finally:
        os.close(process)
    raise AssertionError(f"process {pid} has no connection to {path}")


def _leads_to(one: socket.socket) -> object:
    try:
        return one.getpeername()
    except OSError:  # it listens
        return None


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
