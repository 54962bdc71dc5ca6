"""Check whether this daemon is alive, by a request to its own socket, and notify systemd's watchdog only while the
request is answered.

The daemon sends `WATCHDOG=1` at half of the interval that systemd allows. A hanging event loop makes no request, and a socket
without an accept loop gives no answer. In both cases systemd is not notified, and restarts the daemon. The daemon's
dependencies (the runtime, the driver) are not checked, because a restart would not bring them back. `notify` tells systemd the
daemon's state, and does nothing if NOTIFY_SOCKET is not set.

Source: sd_notify(3), sd_watchdog_enabled(3), unix(7); RFC 9113 §3.4: a server speaks first, or after the client's preface.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from lading.log import Event, Log

PROBE_TIMEOUT_S: Final = 2.0
# A daemon on a slow node answers itself late, but does not hang: 2 s were often too short on a node of emulated processors. The
# watchdog waits 30 s, and a probe begins after 15 s of them.
OWN_PROBE_TIMEOUT_S: Final = 10.0
# A full accept queue is tried again at this interval, in seconds, because a working accept loop empties it.
QUEUE_RETRY_S: Final = 0.02
# An HTTP/2 client without a request sends these bytes: preface, and SETTINGS without a setting.
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


async def find_silence(
    path: Path, *, hello: bytes = b"", probe: socket.socket | None = None, timeout_s: float = PROBE_TIMEOUT_S
) -> str:
    """Return why the listener at `path` does not answer, or an empty text if its first byte comes in time. Closes `probe`."""
    with probe or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dial:
        dial.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await _connect(dial, path)
                if hello:
                    await loop.sock_sendall(dial, hello)
                return "" if await loop.sock_recv(dial, 1) else f"{path} closed the connection without an answer"
        except TimeoutError:
            return f"no answer at {path} within {timeout_s:g} s"
        except OSError as e:
            return f"cannot connect to {path}: {e.strerror}"


async def find_own_silence(path: Path, *, hello: bytes = b"", probe: socket.socket | None = None) -> str:
    """Return why the daemon's own socket does not answer, or an empty text. A missing socket file is not a failure here, and
    `missing_socket` reports it. Connected clients are served, and a restart would disconnect them without creating the file,
    which systemd created."""
    silence = await find_silence(path, hello=hello, probe=probe, timeout_s=OWN_PROBE_TIMEOUT_S)
    return "" if missing_socket(path) else silence


def missing_socket(path: Path) -> str:
    """Return why no client can connect any more, or an empty text."""
    return "" if path.is_socket() else f"{path} is gone (systemctl restart the .socket unit)"


async def _connect(dial: socket.socket, path: Path) -> None:
    """Connect, and retry while the accept queue is full (EAGAIN), which loop.sock_connect takes for a pending connection."""
    while True:
        try:
            dial.connect(os.fspath(path))
        except BlockingIOError:
            await asyncio.sleep(QUEUE_RETRY_S)
        else:
            return


def read_watchdog_s() -> float | None:
    """Return the seconds that systemd's watchdog waits for this process; None if it does not wait."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) > 0 else None


async def keep_fed(silence: Callable[[], Awaitable[str]], log: Log) -> None:
    """Notify systemd's watchdog as long as `silence` returns an empty text. Return at once if systemd does not wait, otherwise
    never."""
    wait_s = read_watchdog_s()
    if wait_s is None:
        return
    logged = ""
    while True:
        reason = await silence()
        if not reason:
            notify("WATCHDOG=1")
        elif reason != logged:
            log.error(Event.PROBE_FAILED, f"{reason}; systemd restarts this daemon if this lasts {wait_s:g} s")
        logged = reason
        await asyncio.sleep(wait_s / 2 if not reason else min(1.0, wait_s / 4))


def notify(state: str) -> None:
    """Send `state`: READY=1, STOPPING=1, WATCHDOG=1, STATUS=… . Errors are ignored: a manager that does not listen is not a
    failure of the daemon."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.sendto(state.encode(), address)
