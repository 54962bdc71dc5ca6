"""Run `lading-hooks` in the namespace of a rig, on the rig's kernel: `python -m simnode.vf_daemon --config FILE`.

An environment variable names the rig. This program loads all modules and forks the daemon, before it has any thread. A daemon
that was killed at a point (`VfRig.arm`) is forked again a moment later, as systemd would start it, but without the half second
in which Python loads the modules. After any other end of the daemon this program ends too, and the daemon never outlives it.
"""

import argparse
import asyncio
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from hooks.daemon.settings import CONFIG, Settings, check
from hooks.ledger.journal import Journal
from lading.errors import LadingError, die
from lading.log import open_log
from lading.settings import add_flags, parse_args
from simnode.child import replace_text
from simnode.links import enter
from simnode.vf_folder import FOLDER, RigFolder
from simnode.vf_kernel import Points, rig_kernel

_PR_SET_PDEATHSIG: Final = 1
_SCAN_S: Final = 0.01
_WAITED_FOR: Final = frozenset({signal.SIGCHLD, signal.SIGTERM})


def main() -> None:
    folder = RigFolder(Path(os.environ[FOLDER]))
    set_clock(folder)
    enter(folder.netns)  # before another thread exists
    run = importlib.import_module("hooks.daemon.daemon").run
    parser = argparse.ArgumentParser(prog="simnode.vf_daemon", description="lading-hooks on a rig with VFs.")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
            serve(run, folder, args)
        replace_text(folder.pid, str(pid))
        status = wait(pid)
        if status != -signal.SIGKILL:
            sys.exit(status)
        while folder.stay_dead.exists():
            if signal.sigtimedwait({signal.SIGTERM}, _SCAN_S) is not None:
                sys.exit()


def set_clock(folder: RigFolder) -> None:
    """Set wall time to the rig's. The daemon takes the clock when it is loaded, which must be after this."""
    now = time.time

    def of_rig() -> float:
        return now() + (int(folder.clock.read_text()) if folder.clock.exists() else 0)

    time.time = of_rig


def serve(run: Callable[..., Coroutine[Any, Any, None]], folder: RigFolder, args: argparse.Namespace) -> None:
    """Run the daemon. Does not return."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        settings = parse_args(Settings, args, check)
        points = Points(folder)
        points.follow(Journal)
        kernel = rig_kernel(Path(settings.host_root), folder, points)
        asyncio.run(run(settings, open_log("lading-hooks", settings.log_level), kernel=kernel))
    except LadingError as e:
        die(e)
    sys.exit()


def wait(pid: int) -> int:
    """Wait for the end of the daemon; pass SIGTERM on to it. Return its exit code."""
    while True:
        if signal.sigwait(_WAITED_FOR) == signal.SIGTERM:
            os.kill(pid, signal.SIGTERM)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
