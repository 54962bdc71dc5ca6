"""Run a child process with a log: start it in a session of its own, wait for its progress, and end it by its pid.

A child that does not start raises HostError with the end of its log. The child has its own session so that Ctrl-C at a terminal
reaches only the parent, which then ends its children in order.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lading.errors import HostError
from simnode.patience import wait_until


def replace_text(path: Path, text: str) -> None:
    """Replace the text by rename: a reader never sees half of it. Several processes may write one file."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(path)


def answers(path: Path) -> bool:
    """Report whether a process accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


class Block:
    """Start parts for a `with` block, and end them after the block. `_begin` starts the parts, and pushes the end of each on
    `_ends`."""

    def __enter__(self) -> Self:
        self._ends = contextlib.ExitStack()
        try:
            self._begin()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.close()

    def _begin(self) -> None:
        raise NotImplementedError


class Child:
    """Run one process. `start` after `stop` or `kill` starts it again, with the same arguments, and appends to the same log."""

    def __init__(self, argv: list[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.argv = argv
        self.log = log
        self._env = {**os.environ, **(env or {})}
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return Path(self.argv[0]).name

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise HostError(f"cannot name the pid of {self.name}: it was not started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def status(self) -> int | None:
        """Return the exit status; None before the end."""
        return self._popen.poll() if self._popen else None

    def start(self) -> None:
        if self.running:
            raise HostError(f"cannot start {self.name}: it runs already, pid {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as out:
                self._popen = subprocess.Popen(  # noqa: S603 -- the rig's own command lines
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    start_new_session=True,
                )
        except OSError as e:
            raise HostError(f"cannot start {self.name}: {e}") from e

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready` is true. Raise HostError when the process ends first, or makes no progress."""
        wait_until(ready, what, self)

    def stop(self, *, grace_s: float = 15.0) -> int | None:
        """Send SIGTERM, then SIGKILL after the grace; return the exit status (None where it never ran). May be called twice."""
        if self._popen is None:
            return None
        if self.running:
            self._popen.terminate()
            try:
                self._popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        return self._popen.wait()

    def kill(self) -> None:
        """Send SIGKILL, as the kernel's OOM killer would."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
