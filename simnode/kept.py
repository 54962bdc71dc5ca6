"""Keep a demo running in the background: the command returns with the demo's exit status, and its process goes on.

Call `fork` before the event loop starts, and `detach` when the demo has printed everything. Source: fork(2), setsid(2).
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError

STOP_S: Final = 15.0


def wanted() -> bool:
    return os.environ.get("DEMO_KEEP", "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class Kept:
    _told: int  # the writing end of the pipe that the waiting command reads

    def detach(self, folder: Path, status: int) -> None:
        """Let the command return with this status. Later output goes into the folder's log."""
        sys.stdout.flush()
        sys.stderr.flush()
        into = os.open(folder / "demo.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(into, descriptor)
        (folder / "pid").write_text(str(os.getpid()))
        os.write(self._told, bytes([status]))
        os.close(self._told)


def fork() -> Kept:
    """Return in a child of this process, which waits for it to detach or end."""
    heard, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        status = os.read(heard, 1)
        os._exit(status[0] if status else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    os.close(heard)
    os.setsid()
    return Kept(told)


def stop(folder: Path) -> None:
    """End the process that `detach` noted there, and wait until it has removed its folder."""
    try:
        os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    except (OSError, ValueError) as e:
        raise HostError(f"cannot find a demo in {folder}: {e}", hint="DEMO_KEEP=1 leaves one running") from e
    until = time.monotonic() + STOP_S
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
