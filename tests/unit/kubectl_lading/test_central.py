"""Test that central is called through the API server's proxy or by a URL, and that each command works without central."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from central.decide.why_pod import Why
from kubectl_lading.access import connect
from kubectl_lading.central import DEFAULT_PORT, Central
from kubectl_lading.flags import Flags
from kubectl_lading.objects import Unread
from lading.errors import ConfigError
from lading.health import NO_SUCH_PAGE
from simnode.api_server import failure, write_kubeconfig

WHY = {"namespace": "team", "name": "p", "uid": "u", "state": "pending", "asks": "main: 1 whole GPU", "refused_s": 7.0}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/sys/leases/lading-central"
LED = {
    "spec": {"holderIdentity": "lading-central-x_6b1f0a52-0000-0000-0000-000000000000"}
}  # central.daemon.lease writes this form
POD = "/api/v1/namespaces/sys/pods/lading-central-x"
PORTS = [{"containerPort": 8080, "name": "extender"}, {"containerPort": 8090, "name": "page"}]
PATH = "/api/v1/namespaces/sys/pods/{}:lading-central-x:8090/proxy/v1/why/team/p"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ask(
    folder: Path, handler: Handler, *, by_url: bool = False, timeout_s: float = 3.0, lease: Any = LED
) -> tuple[Any, list[str]]:
    """Return the answer, and the requested paths of central. Requests for the lease reach the handler too if `lease` is
    None."""
    requested = []

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.path == LEASE and lease is not None:
            return web.json_response(lease)
        if request.path == POD and lease is not None:
            spec = {"containers": [{"name": "central", "ports": PORTS}]}
            return web.json_response({"metadata": {"name": "x"}, "spec": spec})
        requested.append(request.path)
        return await handler(request)

    async def run() -> Any:
        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0][:2])
        flags = Flags(
            kubeconfig=str(write_kubeconfig(folder / "config", url)), lading_namespace="sys", central=url if by_url else ""
        )
        try:
            async with connect(flags) as client:
                return await Central(client, flags, timeout_s=timeout_s).why("team", "p")
        finally:
            await runner.cleanup()

    return asyncio.run(run()), requested


async def answers(request: web.Request) -> web.StreamResponse:
    return web.json_response(WHY)


def test_the_one_that_leads_through_the_api_servers_proxy(tmp_path: Path) -> None:
    text, requested = ask(tmp_path, answers)
    assert isinstance(text, Why)
    assert (text.uid, text.refused_s) == ("u", 7.0)
    assert requested == [PATH.format("http")]


def test_at_a_url(tmp_path: Path) -> None:
    text, requested = ask(tmp_path, answers, by_url=True)
    assert isinstance(text, Why)
    assert requested == ["/v1/why/team/p"]


def test_one_with_a_certificate_is_asked_after_the_plain_one_failed(tmp_path: Path) -> None:
    async def only_https(request: web.Request) -> web.StreamResponse:
        return await answers(request) if "/https:" in request.path else failure(503, "ServiceUnavailable")

    text, requested = ask(tmp_path, only_https)
    assert isinstance(text, Why)
    assert requested == [PATH.format("http"), PATH.format("https")]


def test_a_pod_that_it_does_not_know_is_no_failure(tmp_path: Path) -> None:
    async def unknown(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="no such pod asks for devices\n")

    assert ask(tmp_path, unknown)[0] is None
    assert ask(tmp_path, unknown, by_url=True)[0] is None


@pytest.mark.parametrize("lease", [LED, None])
@pytest.mark.parametrize(("status", "named"), [(404, "lease lading-central"), (403, "pods/proxy"), (503, "503"), (500, "500")])
def test_why_it_is_silent(tmp_path: Path, status: int, named: str, lease: Any) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        return failure(status, "NotFound" if status == 404 else "Forbidden")

    text, _ = ask(tmp_path, fails, lease=lease)
    assert isinstance(text, Unread)
    assert named in text.why


@pytest.mark.parametrize("lease", [{}, {"spec": {}}, {"spec": {"holderIdentity": ""}}])
def test_no_one_leads(tmp_path: Path, lease: Any) -> None:
    text, requested = ask(tmp_path, answers, lease=lease)
    assert isinstance(text, Unread)
    assert requested == []


def test_it_is_not_waited_for_long(tmp_path: Path) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    for by_url in (False, True):
        assert isinstance(ask(tmp_path, never, by_url=by_url, timeout_s=0.1)[0], Unread)


def test_an_answer_that_cannot_be_read(tmp_path: Path) -> None:
    async def garbage(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    assert isinstance(ask(tmp_path, garbage)[0], Unread)


def test_a_metrics_port_is_called_one_and_the_right_one_is_named(tmp_path: Path) -> None:
    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, body=NO_SUCH_PAGE)

    with pytest.raises(ConfigError) as caught:
        ask(tmp_path, metrics, by_url=True)
    assert "metrics" in caught.value.message
    assert f"http://127.0.0.1:{DEFAULT_PORT}" in caught.value.hint


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_api_server_is_no_central(tmp_path: Path, status: int) -> None:
    async def api_server(request: web.Request) -> web.StreamResponse:
        return failure(status, "No")

    with pytest.raises(ConfigError):
        ask(tmp_path, api_server, by_url=True)


def test_a_replica_that_does_not_lead_says_so(tmp_path: Path) -> None:
    async def standby(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="not the leader\n")

    text, _ = ask(tmp_path, standby, by_url=True)
    assert isinstance(text, Unread)
    assert "lead" in text.why


@pytest.mark.parametrize("url", ["central:8081", "ftp://x", "http://", "http://c:port", "http://c:99999"])
def test_what_is_no_url(tmp_path: Path, url: str) -> None:
    config = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")

    async def run() -> None:
        flags = Flags(kubeconfig=str(config), central=url)
        async with connect(flags) as client:
            Central(client, flags)

    with pytest.raises(ConfigError):
        asyncio.run(run())
