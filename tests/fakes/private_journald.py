"""Run the real systemd-journald in a mount namespace of its own, with a tmpfs on /run. It need not be a child of PID 1.

`native` is the path of its socket outside the namespace, `open_stream` returns a stream as systemd gives a service for stderr,
and `read` returns the records that `journalctl` finds. The daemon ends with the `with` block. Source:
systemd-journald.service(8), journalctl(1).
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from simnode.child import Child

_PROGRAM: Final = Path("/usr/lib/systemd/systemd-journald")
_MACHINE: Final = "5f0d2c6100004000800000000000abcd"
_START: Final = """
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal
echo "$2" > /run/machine-id
mount --bind /run/machine-id /etc/machine-id
exec "$1"
"""


def missing() -> str:
    """Return why this machine cannot run the daemon, or an empty text."""
    if os.geteuid() != 0:
        return "root"
    there = _PROGRAM.exists() and shutil.which("journalctl") and Path("/etc/machine-id").exists()
    return "" if there else "systemd-journald (apt-get install systemd)"


class PrivateJournald:
    def __init__(self, folder: Path) -> None:
        script = ["sh", "-c", _START, "journald", str(_PROGRAM), _MACHINE]
        self._child = Child(["unshare", "--mount", "--propagation", "private", "--", *script], log=folder / "journald.log")

    def __enter__(self) -> Self:
        self._child.start()
        try:
            self._child.wait_until(self.native.is_socket, "its socket")
            self._child.wait_until(self._stream.is_socket, "its stream socket")
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.kill()

    @property
    def native(self) -> Path:
        return self._run / "systemd/journal/socket"

    def open_stream(self, identifier: str) -> socket.socket:
        """Return a stream whose lines become records. A service's JOURNAL_STREAM names the stream's device and inode."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(str(self._stream))
        stream.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
        return stream

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop_reading(self) -> None:
        os.kill(self._child.pid, signal.SIGSTOP)

    def read_on(self) -> None:
        os.kill(self._child.pid, signal.SIGCONT)

    def read(self, *match: str) -> list[dict[str, Any]]:
        """Return what `journalctl` finds, once everything that was sent is written."""
        inside = ["nsenter", "--target", str(self._child.pid), "--mount", "--"]
        subprocess.run([*inside, "journalctl", "--sync"], check=True, capture_output=True)
        # The last word on the form of the output is ours, whatever a recipe wants to see.
        argv = ["journalctl", "-D", str(self._run / "log/journal"), "--all", "--no-pager", *match, "--output=json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        with contextlib.suppress(ValueError):
            return [json.loads(line) for line in done.stdout.splitlines()]
        raise AssertionError(f"{argv}: {done.stdout}{done.stderr}")

    @property
    def _run(self) -> Path:
        return Path(f"/proc/{self._child.pid}/root/run")

    @property
    def _stream(self) -> Path:
        return self._run / "systemd/journal/stdout"
