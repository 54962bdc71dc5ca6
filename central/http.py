"""Serve HTTP/1.1 on one address within limits, with or without TLS; count and trace the requests of `measured` handlers. The
extender and the page use this server; `lading.health` serves metrics and health in all daemons.

Tests: tests/unit/central/extender/test_server.py
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from aiohttp import web

from lading.errors import ConfigError, HostError
from lading.health import Address
from lading.tracing import OFF, Span, Tracing

MAX_WAITING: Final = 256
MAX_BUSY: Final = 2048  # kube-scheduler sends many binds at a time, one for each pod
HEAD_S: Final = 5.0
ACCEPT_RETRY_S: Final = 0.1  # most failures are a lack of file descriptors


class Listener:
    """Limit the connections of an HTTP server: how many may be open, and how long a request may take to arrive.

    A connection is *waiting* until a request's head has arrived, and again after each answer. Beyond MAX_WAITING the connection
    that has waited longest is closed and the new one is served, so that silent clients do not block others; kube-scheduler
    reopens a closed idle connection. A connection is closed after HEAD_S, TLS handshake included, if its first request's head
    has not arrived. The listener accepts sockets itself, because an asyncio server shows a connection only after its TLS
    handshake.
    """

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


STOP_S: Final = 15.0  # seconds for answers under way when central stops; a pod has 30 s to end
JSON: Final = "application/json"
NOT_LEADING: Final = "not the leader\n"  # kubectl_lading.central compares answers with this text
SPAN: Final = web.RequestKey("span", Span)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answered = Callable[[str, int, float], None]


class HttpServer:
    def __init__(self, *, answered: Answered, tracing: Tracing = OFF, max_body: int = 1024) -> None:
        """Create the server; routes are added to `router`. `answered` is called with name, status and seconds of each request
        whose handler is `measured`. `max_body`: bytes."""
        self._answered = answered
        self._tracing = tracing
        self._listener: Listener | None = None
        app = web.Application(client_max_size=max_body, middlewares=[self._count])
        self.router: Final = app.router
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=STOP_S, auto_decompress=False, lingering_time=0.0
        )

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101  setup made it
        self._listener = Listener(self._runner.server, tls)
        return self._listener.start(address)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        await self._runner.cleanup()

    def measured(self, name: str, handler: Handler) -> Handler:
        """Return a handler that runs in a span, stored as `SPAN` in its request, and calls `answered` afterwards."""

        async def handle(request: web.Request) -> web.StreamResponse:
            began, status = time.perf_counter(), 500
            with self._tracing.begin(name, parent=request.headers.get("traceparent", "")) as span:
                request[SPAN] = span
                try:
                    response = await handler(request)
                    status = response.status
                except web.HTTPException as e:  # aiohttp raises this for a body over max_body
                    status = e.status
                    raise
                finally:
                    span.note(http_response_status__code=str(status))
                    self._answered(name, status, time.perf_counter() - began)
            return response

        return handle

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        assert self._listener is not None  # noqa: S101  a request came through it
        with self._listener.busy(request.protocol):
            return await handler(request)


def server_tls(certificate: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """Return the TLS context; None without a certificate: plain HTTP. With `client_ca` every client needs a certificate signed
    by that authority. Raise ConfigError for invalid files."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as e:  # ssl's errors are OSErrors too
        raise ConfigError(f"cannot load tls_certificate {certificate} with tls_key {key}: {e.strerror or e}") from e
    if client_ca:
        try:
            context.load_verify_locations(client_ca)
        except OSError as e:
            raise ConfigError(f"cannot load tls_client_ca {client_ca}: {e.strerror or e}") from e
        context.verify_mode = ssl.CERT_REQUIRED
    return context
