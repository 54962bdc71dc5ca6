"""Test that central is called through the API server's proxy or by a URL, and that each command works without central."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from central.decide.why_pod import Why
from kubectl_lading.access import connect
from kubectl_lading.central import DEFAULT_PORT, Central, why_path
from kubectl_lading.flags import Flags
from kubectl_lading.objects import Unread
from lading.errors import ConfigError
from lading.vocabulary import NO_SUCH_PAGE
from simnode.api_server import failure, write_kubeconfig

WHY = {"namespace": "team", "name": "p", "uid": "u", "state": "pending", "asks": "main: 1 whole GPU", "refused_s": 7.0}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/sys/leases/lading-central"
# central.daemon.lease writes this form of identity.
LED = {"spec": {"holderIdentity": "lading-central-x_6b1f0a52-0000-0000-0000-000000000000"}}
POD = "/api/v1/namespaces/sys/pods/lading-central-x"
PORTS = [{"containerPort": 8080, "name": "extender"}, {"containerPort": 8090, "name": "page"}]
PATH = "/api/v1/namespaces/sys/pods/{}:lading-central-x:8090/proxy/v1/why/team/p"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Serve every path by this handler, at the URL that the block gets."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def ask(
    folder: Path, handler: Handler, *, by_url: bool = False, timeout_s: float = 3.0, lease: Any = LED
) -> tuple[Any, list[str]]:
    """Return the answer, and the requested paths of central. Requests for the lease reach the handler too if `lease` is
    None."""
    requested = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == LEASE and lease is not None:
            return web.json_response(lease)
        if request.path == POD and lease is not None:
            spec = {"containers": [{"name": "central", "ports": PORTS}]}
            return web.json_response({"metadata": {"name": "x"}, "spec": spec})
        requested.append(request.path)
        return await handler(request)

    async with serve(answer) as url:
        config = write_kubeconfig(folder / "config", url)
        flags = Flags(kubeconfig=str(config), lading_namespace="sys", central=url if by_url else "")
        async with connect(flags) as client:
            return await Central(client, flags, timeout_s=timeout_s).ask(why_path("team", "p"), Why), requested


async def answers(request: web.Request) -> web.StreamResponse:
    return web.json_response(WHY)


async def test_the_leader_is_asked_through_the_proxy_of_the_api_server(tmp_path: Path) -> None:
    text, requested = await ask(tmp_path, answers)
    assert isinstance(text, Why)
    assert (text.uid, text.refused_s) == ("u", 7.0)
    assert requested == [PATH.format("http")]


async def test_central_is_asked_at_a_given_url(tmp_path: Path) -> None:
    text, requested = await ask(tmp_path, answers, by_url=True)
    assert isinstance(text, Why)
    assert requested == ["/v1/why/team/p"]


async def test_central_is_asked_by_https_after_http_failed(tmp_path: Path) -> None:
    async def only_https(request: web.Request) -> web.StreamResponse:
        return await answers(request) if "/https:" in request.path else failure(503, "ServiceUnavailable")

    text, requested = await ask(tmp_path, only_https)
    assert isinstance(text, Why)
    assert requested == [PATH.format("http"), PATH.format("https")]


def always(status: int, body: bytes = b"", *, reason: str = "") -> Handler:
    """Answer each request with this status, and with a Status object that has this reason or with the body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return failure(status, reason) if reason else web.Response(status=status, body=body)

    return handler


@pytest.mark.parametrize("by_url", [False, True])
async def test_a_pod_that_central_does_not_know_is_no_failure(tmp_path: Path, by_url: bool) -> None:
    assert (await ask(tmp_path, always(404, b"no such pod asks for devices\n"), by_url=by_url))[0] is None


@pytest.mark.parametrize("lease", [LED, None], ids=["with a leader", "without a lease"])
@pytest.mark.parametrize(("status", "named"), [(404, "lease lading-central"), (403, "pods/proxy"), (503, "503"), (500, "500")])
async def test_the_reason_why_central_does_not_answer_is_named(tmp_path: Path, status: int, named: str, lease: Any) -> None:
    text, _ = await ask(tmp_path, always(status, reason="NotFound" if status == 404 else "Forbidden"), lease=lease)
    assert isinstance(text, Unread)
    assert named in text.why


@pytest.mark.parametrize("lease", [{}, {"spec": {}}, {"spec": {"holderIdentity": ""}}])
async def test_central_is_not_asked_while_no_replica_leads(tmp_path: Path, lease: Any) -> None:
    text, requested = await ask(tmp_path, answers, lease=lease)
    assert isinstance(text, Unread)
    assert requested == []


@pytest.mark.parametrize("by_url", [False, True])
async def test_an_answer_is_not_waited_for_beyond_the_timeout(tmp_path: Path, by_url: bool) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    assert isinstance((await ask(tmp_path, never, by_url=by_url, timeout_s=0.1))[0], Unread)


async def test_an_answer_that_is_not_json_is_reported(tmp_path: Path) -> None:
    assert isinstance((await ask(tmp_path, always(200, b"<html>")))[0], Unread)


async def test_the_url_of_a_metrics_port_is_an_error_that_names_the_right_port(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await ask(tmp_path, always(404, NO_SUCH_PAGE), by_url=True)
    assert "metrics" in caught.value.message
    assert f"http://127.0.0.1:{DEFAULT_PORT}" in caught.value.hint


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_the_url_of_an_api_server_is_an_error(tmp_path: Path, status: int) -> None:
    with pytest.raises(ConfigError):
        await ask(tmp_path, always(status, reason="No"), by_url=True)


async def test_the_answer_of_a_replica_that_does_not_lead_says_so(tmp_path: Path) -> None:
    text, _ = await ask(tmp_path, always(503, b"not the leader\n"), by_url=True)
    assert isinstance(text, Unread)
    assert "lead" in text.why


@pytest.mark.parametrize("url", ["central:8081", "ftp://x", "http://", "http://c:port", "http://c:99999"])
async def test_an_invalid_url_is_an_error(tmp_path: Path, url: str) -> None:
    flags = Flags(kubeconfig=str(write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")), central=url)
    async with connect(flags) as client:
        with pytest.raises(ConfigError):
            Central(client, flags)
