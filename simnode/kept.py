"""End a demo: remove its folder, or keep the logs after a failure, or leave the demo running.

To leave a demo running, the command returns with the demo's exit status while the demo's process continues. Call `fork` before
the event loop starts, and `detach` when the demo has printed everything. Source: fork(2), setsid(2).
"""

import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from lading.errors import HostError
from simnode.patience import wait_until
from simnode.terminal import Terminal

LOG: Final = "demo.log"


def wanted() -> bool:
    return os.environ.get("DEMO_KEEP", "") not in ("", "0")


class Workspace:
    """Make a folder that is removed at the end of the block. After a failure copy its logs beside it, and print their path."""

    def __init__(self, prefix: str, out: Terminal) -> None:
        self._out = out
        self._prefix = prefix

    def __enter__(self) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix=self._prefix))
        return self._folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._out.failures or isinstance(error, Exception):
            self._keep_logs()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep_logs(self) -> None:
        logs = self._folder.with_name(f"{self._folder.name}-logs")
        logs.mkdir()
        for log in (*self._folder.glob("*.log"), *self._folder.glob("*/*.log")):
            shutil.copy(log, logs)
        self._out.ended(f"the logs are in {logs}")


@dataclass(frozen=True, slots=True)
class Kept:
    _status_pipe: int  # the writing end of the pipe that the waiting command reads

    def detach(self, folder: Path, status: int) -> None:
        """Let the command return with this status. Later output goes into the folder's log."""
        sys.stdout.flush()
        sys.stderr.flush()
        into = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(into, descriptor)
        (folder / "pid").write_text(str(os.getpid()))
        os.write(self._status_pipe, bytes([status]))
        os.close(self._status_pipe)


def fork() -> Kept:
    """Return in a child of this process, which waits for it to detach or end."""
    heard, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        status = os.read(heard, 1)
        os._exit(status[0] if status else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    os.close(heard)
    os.setsid()
    return Kept(writer)


def stop(folder: Path) -> None:
    """End the process that `detach` noted there, and wait until it has removed its folder."""
    try:
        pid = int((folder / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError) as e:
        raise HostError(f"cannot find a demo in {folder}: {e}", hint="DEMO_KEEP=1 leaves one running") from e
    wait_until(lambda: not folder.exists(), f"the end of process {pid}", logs=[folder / LOG])
