"""Wait for what stops a daemon: SIGTERM from systemd or kubelet, SIGINT from a terminal (systemd.kill(5)), or a driver that was
exchanged.

Tests: tests/unit/hooks/daemon/test_daemon.py
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from lading.errors import HostError
from lading.log import Event, Log
from lading.threads import in_thread


def stop_asked() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on. Needs the main thread, with a running loop."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


async def driver_exchanged(find_outdated: Callable[[], str], interval_s: float, log: Log) -> None:
    """Return when this process cannot use the driver any more, and a new process could. The caller then ends the daemon:
    systemd and kubelet start it anew, and systemd keeps its socket meanwhile. `find_outdated` returns the reason, or an empty
    text, and is called in a thread. An error of it, such as no free descriptors, ends no daemon."""
    while True:
        with contextlib.suppress(OSError, HostError):
            if reason := await in_thread(find_outdated):
                log.warning(Event.DRIVER_EXCHANGED, f"{reason}; this daemon ends, and is started anew")
                return
        await asyncio.sleep(interval_s)
