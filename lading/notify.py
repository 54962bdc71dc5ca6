"""Notify systemd of the daemon's state (sd_notify(3)); nothing happens if NOTIFY_SOCKET is not set."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send `state`: READY=1, STOPPING=1, WATCHDOG=1, STATUS=… . Errors are ignored: a manager that does not listen is not a
    failure of the daemon."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.sendto(state.encode(), address)
