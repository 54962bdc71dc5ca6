"""Simulate systemd for one daemon: hold its socket, start it with LISTEN_FDS, and receive its notifications.

As with systemd, the socket stays open between two runs, LISTEN_PID is the daemon's PID (`execve` keeps it), a start waits for
READY=1, a stop is SIGTERM followed by the end of the process, and WATCHDOG_USEC has the test's value.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lading.sockets import BACKLOG
from simnode.patience import tail

READY_S = 30.0
_LAUNCH = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="test")
if "WATCHDOG_USEC" in os.environ:
    os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServiceManager:
    """Run `argv` with the socket at `path`, which has `mode` from the beginning."""

    def __init__(self, argv: list[str], *, path: Path, log: Path, mode: int = 0o600, watchdog_s: float | None = None) -> None:
        self.log = log
        self.heard: list[str] = []  # notifications of all runs
        self._argv = argv
        self._env = dict(os.environ)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        path.chmod(mode)
        self.listener.listen(BACKLOG)
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(log.with_suffix(".notify")))
        self._env["NOTIFY_SOCKET"] = self._notified.getsockname()
        if watchdog_s is not None:
            self._env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._daemon
        return self._daemon.pid

    def start(self) -> None:
        """Start the daemon, and wait for READY=1."""
        fd = self.listener.fileno()
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-I", "-c", _LAUNCH, str(fd), *self._argv],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        self.wait_for("READY=1")

    def terminate(self) -> None:
        """Send SIGTERM. `wait` waits for the end."""
        assert self._daemon
        self._daemon.terminate()

    def wait(self, timeout_s: float = 60.0) -> int:
        assert self._daemon
        return self._daemon.wait(timeout_s)

    def restart(self) -> None:
        self.terminate()
        assert self.wait() == 0, tail(self.log)
        self.start()

    def wait_for(self, state: str, timeout_s: float = READY_S) -> None:
        """Wait until the daemon sends this state. Earlier notifications do not count."""
        until = time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            assert left > 0, f"no {state} in {timeout_s} s\n{tail(self.log)}"
            self._notified.settimeout(left)
            try:
                text = self._notified.recv(4096).decode().splitlines()
            except TimeoutError:
                continue
            self.heard += text
            if state in text:
                return

    def close(self) -> None:
        if self._daemon and self._daemon.poll() is None:
            self._daemon.kill()
            self._daemon.wait()
        self.listener.close()
        self._notified.close()


@contextmanager
def managed(
    argv: list[str], *, path: Path, log: Path, mode: int = 0o600, watchdog_s: float | None = None
) -> Iterator[ServiceManager]:
    manager = ServiceManager(argv, path=path, log=log, mode=mode, watchdog_s=watchdog_s)
    try:
        yield manager
    finally:
        manager.close()
