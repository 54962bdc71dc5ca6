"""Install the simulated MPS (fake_mps.py) under the names of its programs, and connect clients to it."""

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_mps.py"
CONTROL, SERVER, SYSTEMD_RUN = NAMES = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "systemd-run")


def install_fake_mps(folder: Path) -> Path:
    """Write the programs into the folder, which is created if needed. Return the path of nvidia-cuda-mps-control."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path = folder / name
        path.write_text(f"#!{shutil.which(sys.executable)}\n{SOURCE.read_text()}")
        path.chmod(0o755)
    return folder / CONTROL


class Client:
    """Represent a process in a container that uses the card by MPS: a connection to the daemon's pipe."""

    def __init__(self, pipe: Path, *, uid: int | None = None, wait_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(wait_s)
        self._socket.connect(str(pipe / "control"))
        self._lines = self._socket.makefile("r")
        self._socket.sendall(f"client {os.getuid() if uid is None else uid}\n".encode())

    def answer(self) -> list[str]:
        """Return what a new client is told: "server", its process ID, percent and memory limit; or "refused" and an error of
        CUDA. Raise TimeoutError if it has to wait."""
        return self._lines.readline().split()

    def fault(self) -> None:
        """Cause a fatal fault, which ends all clients of the card."""
        self._socket.sendall(b"fault\n")
        self._lines.readline()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def client(pipe: Path, *, uid: int | None = None, wait_s: float = 10.0) -> Iterator[Client]:
    one = Client(pipe, uid=uid, wait_s=wait_s)
    try:
        yield one
    finally:
        one.close()
