"""Limit the connections of an HTTP server: how many may be open, and how long a request may take to arrive.

The listener gives each accepted connection a protocol. A connection is *waiting* until a request's head has arrived, and again
after each answer. Beyond MAX_WAITING the connection that has waited longest is closed and the new one is served, so that silent
clients do not block others; kube-scheduler reopens a closed idle connection. A connection is closed after HEAD_S, TLS handshake
included, if its first request's head has not arrived.

The module accepts sockets itself, because an asyncio server shows a connection only after its TLS handshake.

Tests: tests/unit/central/extender/test_server.py
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web

from lading.errors import HostError
from lading.health import Address

MAX_WAITING: Final = 256
MAX_BUSY: Final = 2048  # kube-scheduler sends many binds at a time, one for each pod
HEAD_S: Final = 5.0
ACCEPT_RETRY_S: Final = 0.1  # most failures are a lack of file descriptors


class Listener:
    def __init__(self, make: Callable[[], web.RequestHandler], tls: ssl.SSLContext | None) -> None:
        self._make = make
        self._tls = tls
        self._waiting: dict[web.RequestHandler, asyncio.Task[None] | None] = {}  # connections, the longest waiting first
        self._busy: set[web.RequestHandler] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self, address: Address) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            listening = socket.create_server(address, family=family, backlog=1024)
        except OSError as e:
            raise HostError(f"cannot listen on {address.host}:{address.port}: {e.strerror}") from e
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening))
        return Address(*listening.getsockname()[:2])

    async def close(self) -> None:
        """Stop accepting. Open connections belong to their protocols."""
        opening = [task for task in self._waiting.values() if task is not None]
        for task in (self._accepting, *opening):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    @contextlib.contextmanager
    def busy(self, protocol: web.RequestHandler) -> Iterator[None]:
        """Count a connection as busy while a request on it is answered."""
        guard = self._waiting.pop(protocol, None)
        if guard is not None:
            guard.cancel()
        self._busy.add(protocol)
        try:
            yield
        finally:
            self._busy.discard(protocol)
            self._wait(protocol, None)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(ACCEPT_RETRY_S)
                    continue
                if len(self._busy) >= MAX_BUSY:
                    accepted.close()
                    continue
                protocol = self._make()
                self._wait(protocol, loop.create_task(self._open(accepted, protocol)))

    def _wait(self, protocol: web.RequestHandler, guard: asyncio.Task[None] | None) -> None:
        while len(self._waiting) >= MAX_WAITING:
            longest = next(iter(self._waiting))
            if (opening := self._waiting.pop(longest)) is not None:
                opening.cancel()
            _abort(longest)
        self._waiting[protocol] = guard

    async def _open(self, accepted: socket.socket, protocol: web.RequestHandler) -> None:
        """Open the connection, and close it after HEAD_S. The arrival of a request's head cancels this task."""
        loop = asyncio.get_running_loop()
        limit_s = HEAD_S if self._tls else None
        with contextlib.suppress(OSError):  # the TLS handshake failed, or the client closed the connection
            await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=limit_s)
            await asyncio.sleep(HEAD_S)
        self._waiting.pop(protocol, None)
        _abort(protocol)


def _abort(protocol: web.RequestHandler) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()
