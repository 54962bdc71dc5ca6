"""Handle the signals that stop a daemon: SIGTERM from systemd or kubelet, SIGINT from a terminal (systemd.kill(5))."""

import asyncio
import signal


def stop_asked() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on. Needs the main thread, with a running loop."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked
