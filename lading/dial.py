"""Connect to a Unix socket, and raise EAGAIN if its backlog is full: asyncio takes EAGAIN for a pending connection.

Tests: tests/unit/runtimeproxy/test_link.py
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dial(protocol: Callable[[], P], path: str) -> P:
    """Connect to the socket at `path` and return the protocol. Raises OSError."""
    transport, made = await asyncio.get_running_loop().create_unix_connection(protocol, path)
    if transport.get_extra_info("peername") is None:
        transport.abort()
        raise OSError(errno.EAGAIN, f"its backlog is full: {os.strerror(errno.EAGAIN)}")
    return made


def accepts(path: str) -> bool:
    """Return whether the socket at `path` accepts a connection. Connecting to a Unix socket does not wait."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except OSError:
        return False
    return True
