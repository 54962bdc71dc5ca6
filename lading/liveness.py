"""Is this daemon alive: a question to its own socket, and systemd's watchdog, fed only while that is answered.

Enters: how to ask. Leaves: `WATCHDOG=1` at half of what systemd allows. A loop that hangs can not ask, and a socket that nobody
accepts on does not answer: in both cases nothing is fed, and systemd starts the daemon anew. What is behind the daemon (the
runtime, the driver) is not asked: restarting would not bring it back.

Source: sd_watchdog_enabled(3), unix(7); RFC 9113 §3.4: a server speaks first, or after the client's preface.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from lading.log import Event, Log
from lading.notify import notify

PROBE_TIMEOUT_S: Final = 2.0
# While the accept queue is full, which is no reason to give up: an accept loop that lives empties it.
QUEUE_RETRY_S: Final = 0.02
# An HTTP/2 client that wants nothing: preface, and SETTINGS without a setting.
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


async def find_silence(
    path: Path, *, hello: bytes = b"", probe: socket.socket | None = None, timeout_s: float = PROBE_TIMEOUT_S
) -> str:
    """Why whoever should accept at `path` does not: empty if its first byte comes in time. `probe` is closed."""
    with probe or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dial:
        dial.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await _connect(dial, path)
                if hello:
                    await loop.sock_sendall(dial, hello)
                return "" if await loop.sock_recv(dial, 1) else f"{path} closed the connection without a word"
        except TimeoutError:
            return f"no answer at {path} within {timeout_s:g} s"
        except OSError as e:
            return f"cannot connect to {path}: {e.strerror}"


async def find_own_silence(
    path: Path, *, hello: bytes = b"", probe: socket.socket | None = None, timeout_s: float = PROBE_TIMEOUT_S
) -> str:
    """The same of a daemon's own socket. That its file is gone is not silence: who is connected is served, and under socket
    activation a restart would only end that, for the file is systemd's. `missing_socket` is for saying it."""
    silence = await find_silence(path, hello=hello, probe=probe, timeout_s=timeout_s)
    return "" if missing_socket(path) else silence


def missing_socket(path: Path) -> str:
    """Why nobody can connect any more, or nothing."""
    return "" if path.is_socket() else f"{path} is gone (systemctl restart the .socket unit)"


async def _connect(dial: socket.socket, path: Path) -> None:
    """loop.sock_connect takes EAGAIN, a full accept queue, for a connection under way: on a Unix socket there is none."""
    while True:
        try:
            dial.connect(os.fspath(path))
        except BlockingIOError:
            await asyncio.sleep(QUEUE_RETRY_S)
        else:
            return


def read_watchdog_s() -> float | None:
    """How long systemd waits for a sign of life of this process; None where it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) > 0 else None


async def keep_fed(silence: Callable[[], Awaitable[str]], log: Log) -> None:
    """Feeds the watchdog for as long as `silence` finds none. Returns at once where systemd does not wait, else never."""
    wait_s = read_watchdog_s()
    if wait_s is None:
        return
    said = ""
    while True:
        why = await silence()
        if not why:
            notify("WATCHDOG=1")
        elif why != said:
            log.error(Event.PROBE_FAILED, f"{why}; systemd restarts this daemon after {wait_s:g} s of that")
        said = why
        await asyncio.sleep(wait_s / 2 if not why else min(1.0, wait_s / 4))
