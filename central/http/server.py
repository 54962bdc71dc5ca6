"""Serve HTTP/1.1 on one address, with or without TLS; count and trace the requests of `measured` handlers.

Tests: tests/unit/central/extender/test_server.py
"""

import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from central.http.connections import Listener
from lading.errors import ConfigError
from lading.health import Address
from lading.tracing import OFF, Span, Tracing

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
