"""Serve people on a listener of its own: the page, if it is enabled, and requests of `kubectl lading`.

    GET /v1/why/NAMESPACE/POD          why a pod waits (central.decide.why_pod); 404: no such pod waits for devices
    GET /v1/configuration              the effective configuration (central.decide.configuration)
    GET /v1/quotas                     the tree of quotas (central.view.quotas)
    GET / and /v1/cluster              see central.page.routes

All requests are read-only, and the extender's verbs cannot be reached on this listener.

Tests: tests/unit/central/page/test_routes.py
"""

import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from central.http import JSON, NOT_LEADING, Answered, Handler, HttpServer
from central.page.routes import PageRoutes, refusal, refuse_name
from lading.health import Address
from lading.tracing import OFF, Tracing


class Answers(Protocol):
    """Answer as the leader (central.daemon.leadership)."""

    async def why(self, namespace: str, name: str) -> bytes | None:
        """Return as JSON why a pod waits; None for a pod that does not wait for devices."""

    def configuration(self) -> bytes:
        """Return the effective configuration as JSON."""

    def quota_view(self) -> bytes:
        """Return the tree of quotas as JSON."""


class PageServer:
    def __init__(
        self,
        leader: Callable[[], Answers | None],
        *,
        answered: Answered,
        page: PageRoutes | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        """Create the server. `leader` returns None while another replica leads. `answered` is called with name, status and
        seconds of each request. Requests of the page are left out, because they mostly wait for changes."""
        self._leader = leader
        self._page = page
        self._http = HttpServer(answered=answered, tracing=tracing)
        for name, path, handler in (
            ("why", "/v1/why/{namespace}/{name}", _why),
            ("configuration", "/v1/configuration", _configuration),
            ("quotas", "/v1/quotas", _quotas),
        ):
            self._http.router.add_get(path, self._http.measured(name, self._by_leader(handler)), allow_head=False)
        if page is not None:
            page.add_routes(self._http.router)

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        return await self._http.start(address, tls)

    async def close(self) -> None:
        if self._page is not None:
            self._page.stop()
        await self._http.close()

    def _by_leader(self, answer: Callable[[Answers, web.Request], Awaitable[web.StreamResponse]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if refused := refuse_name(request):
                return refused
            leader = self._leader()
            return refusal(503, NOT_LEADING, close=True) if leader is None else await answer(leader, request)

        return handle


async def _why(leader: Answers, request: web.Request) -> web.StreamResponse:
    answer = await leader.why(request.match_info["namespace"], request.match_info["name"])
    if answer is None:
        return web.Response(status=404, text="no such pod asks for devices\n")
    return web.Response(body=answer, content_type=JSON)


async def _configuration(leader: Answers, request: web.Request) -> web.StreamResponse:
    return web.Response(body=leader.configuration(), content_type=JSON)


async def _quotas(leader: Answers, request: web.Request) -> web.StreamResponse:
    return web.Response(body=leader.quota_view(), content_type=JSON)
