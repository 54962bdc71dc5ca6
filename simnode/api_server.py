"""Serve a small API server over HTTP, for programs that run without a cluster: demo, bench and tests.

The state is in `simnode.api_store`. Answers are JSON; a watch sends every change since its version. The server runs on one
event loop, without TLS and access rights.
"""

import asyncio
import json
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from simnode.api_store import Call, Changes, RefusedError, Store, parse_path


class ApiServer:
    """Run the API server in an `async with` block. `store` may be changed at any time, on the loop's thread: watches send the
    change."""

    def __init__(self, *, port: int = 0, first_version: int = 101) -> None:
        """Create the server for this port; 0: a free port."""
        self.store = Store(first_version=first_version, changed=self._notify)
        self.watching = 0
        self._port = port
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop serving. May be called twice."""
        await self._runner.cleanup()
        await asyncio.sleep(0)  # asyncio closes the sockets of closed connections in its next step

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await read_call(request))

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        try:
            if "watch" in call.query:
                version = int(call.query["resourceVersion"])
                return await self._watch(request, call, self.store.changes(parse_path(call.path).collection, version))
            status, body = self.store.answer(call)
        except RefusedError as e:
            return failure(e.status, e.reason, message=e.message)
        return web.Response(body=body, status=status, content_type="application/json")

    async def _watch(self, request: web.Request, call: Call, changes: Changes) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        self.watching += 1
        try:
            async with asyncio.timeout(int(call.query.get("timeoutSeconds", "3600"))):
                await self._send_changes(answer, changes)
        except (TimeoutError, ConnectionResetError):  # the watch's time is over, or the client disconnected
            pass
        finally:
            self.watching -= 1
            self._notify()
        return answer

    async def _send_changes(self, answer: web.StreamResponse, changes: Changes) -> None:
        while True:
            if lines := changes.take():
                await answer.write(lines)
            if not changes.more:
                await self._something_new()

    async def _something_new(self) -> None:
        """Wait for the next change. All waiting watches read it in this turn of the loop."""
        self._news.clear()
        await self._news.wait()

    def _notify(self) -> None:
        self._news.set()


async def read_call(request: web.Request) -> Call:
    raw = await request.read()
    return Call(
        method=request.method,
        path=request.path,
        query=dict(request.query),
        content_type=request.headers.get("Content-Type", ""),
        body=msgspec.json.decode(raw) if raw else None,
    )


def failure(status: int, reason: str, headers: dict[str, str] | None = None, *, message: str = "") -> web.Response:
    """Return the metav1.Status that a failed call answers."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or reason,
        "reason": reason,
        "code": status,
    }
    return web.json_response(body, status=status, headers=headers)


def write_kubeconfig(path: Path, url: str, *, token: str = "") -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "simulated",
        "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}],
        "clusters": [{"name": "simulated", "cluster": {"server": url}}],
        "users": [{"name": "simulated", "user": {"token": token} if token else {}}],
    }
    path.write_text(json.dumps(config))
    return path
