"""Serve people on a listener of its own: the page, if it is enabled, and requests of `kubectl lading`.

    GET /v1/why/NAMESPACE/POD          why a pod waits (central.decide.why_pod); 404: no such pod waits for devices
    GET /v1/configuration              the effective configuration (central.decide.configuration)
    GET /v1/quotas                     the tree of quotas (central.view.quotas)
    GET / and /v1/cluster              see central.page.routes

All requests are read-only, and the extender's verbs cannot be reached on this listener.

Tests: tests/unit/central/page/test_routes.py
"""

import ssl
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from central.http.server import JSON, NOT_LEADING, Answered, HttpServer
from central.page.routes import PageRoutes, refusal, refuse_name
from lading.health import Address
from lading.tracing import OFF, Tracing


class Answers(Protocol):
    """Answer for the leader; see central.daemon.daemon.Replica."""

    async def why(self, namespace: str, name: str) -> bytes | None:
        """Return as JSON why a pod waits; None for a pod that does not wait for devices."""

    def configuration(self) -> bytes:
        """Return the effective configuration as JSON."""

    def quotas(self) -> bytes:
        """Return the tree of quotas as JSON."""


class PageServer:
    def __init__(
        self,
        answers: Answers,
        *,
        leads: Callable[[], bool],
        answered: Answered,
        page: PageRoutes | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        """Create the server. `answered` is called with name, status and seconds of each request. Requests of the page are left
        out, because they mostly wait for changes."""
        self._answers = answers
        self._leads = leads
        self._page = page
        self._http = HttpServer(answered=answered, tracing=tracing)
        for name, path, handler in (
            ("why", "/v1/why/{namespace}/{name}", self._why),
            ("configuration", "/v1/configuration", self._configuration),
            ("quotas", "/v1/quotas", self._quotas),
        ):
            self._http.router.add_get(path, self._http.measured(name, handler), allow_head=False)
        if page is not None:
            page.add_routes(self._http.router)

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        return await self._http.start(address, tls)

    async def close(self) -> None:
        if self._page is not None:
            self._page.stop()
        await self._http.close()

    async def _why(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        answer = await self._answers.why(request.match_info["namespace"], request.match_info["name"])
        if answer is None:
            return web.Response(status=404, text="no such pod asks for devices\n")
        return web.Response(body=answer, content_type=JSON)

    async def _configuration(self, request: web.Request) -> web.StreamResponse:
        return self._refused(request) or web.Response(body=self._answers.configuration(), content_type=JSON)

    async def _quotas(self, request: web.Request) -> web.StreamResponse:
        return self._refused(request) or web.Response(body=self._answers.quotas(), content_type=JSON)

    def _refused(self, request: web.Request) -> web.Response | None:
        return refuse_name(request) or (None if self._leads() else refusal(503, NOT_LEADING, close=True))
