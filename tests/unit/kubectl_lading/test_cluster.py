"""Test that the API server's lists are read as central's own code reads them."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from central.ledger.model import Claim
from central.request.model import Policy
from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, read_cluster, read_deciding
from kubectl_lading.flags import Flags
from kubectl_lading.lists import NotInstalledError
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.resource import NODE_DEVICES, NODES, PODS, Resource
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import deep_fields, devices, devices_path, node, node_path, pod, pod_path
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.small_cluster import SmallCluster, uid_of


async def _read(server: FakeKubeServer, folder: Path) -> Cluster:
    async with connect(Flags(kubeconfig=str(server.write_kubeconfig(folder / "config")))) as client:
        return await read_cluster(client)


def test_who_holds_what_and_who_waits(tmp_path: Path) -> None:
    async def scenario() -> Cluster:
        async with FakeKubeServer() as server:
            SmallCluster().fill(server.store)
            return await _read(server, tmp_path)

    cluster = asyncio.run(scenario())
    held = {one.holder.name: one for one in cluster.ledger.holders("h100-1")}
    assert held.keys() == {"train-0", "serve-a", "serve-b"}
    assert set(held["train-0"].claims) == {Claim.BOUND, Claim.GRANTED}
    assert {one.name for one in cluster.pending} == {"next-run", "too-many"}
    assert not cluster.ledger.capacity("old-1").reachable
    assert cluster.problems == []
    assert uid_of("train-0") in {one.metadata.uid for one in cluster.pods}


def test_a_deeply_nested_pod_is_read_like_any_other(tmp_path: Path) -> None:
    deep = pod("deep", uid="uid-deep")
    deep["metadata"] |= deep_fields()
    listed = Fault(
        body=msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": [deep]}),
        headers={"Content-Type": "application/json"},
    )

    async def scenario() -> Cluster:
        async with FakeKubeServer() as server:
            SmallCluster().fill(server.store)
            server.fail(listed, when=lambda request: request.path == PODS.path())
            return await _read(server, tmp_path)

    cluster = asyncio.run(scenario())
    assert {one.name for one in cluster.pending} == {"deep"}
    assert cluster.problems == []


async def _read_without(resource: Resource, tmp_path: Path) -> None:
    """Answer as an API server for a kind that it does not serve: text, and no Status."""
    async with FakeKubeServer() as server:
        missing = Fault(status=404, body=b"404 page not found\n")
        server.fail(missing, when=lambda request: request.path == resource.path())
        await _read(server, tmp_path)


def test_a_cluster_without_the_resource_is_reported_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError) as caught:
        asyncio.run(_read_without(NODE_DEVICES, tmp_path))
    assert "nodedevices.devices.lading.dev" in caught.value.message
    assert "deploy/crds" in caught.value.hint


def test_what_knows_no_nodes_is_not_reported_to_install_ours(tmp_path: Path) -> None:
    """Check another server than an API server, as with a wrong path in the kubeconfig's server."""
    with pytest.raises(NotFoundError) as caught:
        asyncio.run(_read_without(NODES, tmp_path))
    assert NODES.path() in caught.value.message


def test_what_cannot_be_understood_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    async def scenario() -> Cluster:
        async with FakeKubeServer() as server:
            server.store.load(devices_path("n1"), devices("n1"))
            server.store.load(devices_path("odd"), {"metadata": {"name": "odd"}, "status": {"gpus": 7}})
            server.store.load(node_path("n1"), node("n1"))
            server.store.load(pod_path("bad"), pod("bad", node="n1", annotations={ASSIGNMENT: "{"}))
            server.store.load(pod_path("bare"), pod("bare", node="n1"))
            return await _read(server, tmp_path)

    cluster = asyncio.run(scenario())
    assert cluster.reports.keys() == {"n1"}
    assert any("NodeDevices odd" in one for one in cluster.problems)
    assert any("default/bad" in one for one in cluster.problems)
    assert [one.metadata.name for one in cluster.unassigned] == ["bare"]


def test_a_refused_list_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeKubeServer() as server:
            server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path.endswith("/pods"))
            await _read(server, tmp_path)

    with pytest.raises(Exception, match="pods") as caught:
        asyncio.run(scenario())
    assert isinstance(caught.value.__cause__, ForbiddenError)


TOLD = msgspec.json.encode(
    {
        "policy": "spread",
        "spread_containers_per_card": 3,
        "workload": [{"weight": 7, "gpus": 8}],
        "foreign_annotations": ["lading.dev/billing"],
    }
)


@pytest.mark.parametrize(
    ("status", "policy", "warned"), [(200, Policy.SPREAD, 0), (404, Policy.FRAGMENTATION, 1), (503, Policy.FRAGMENTATION, 1)]
)
def test_it_is_decided_as_central_says_that_it_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, policy: Policy, warned: int
) -> None:
    async def told(request: web.Request) -> web.Response:
        return web.Response(status=status, body=TOLD if status == 200 else b"no")

    async def scenario() -> Cluster:
        app = web.Application()
        app.router.add_get("/v1/configuration", told)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with FakeKubeServer() as server:
                SmallCluster().fill(server.store)
                billed = pod("billed", uid="uid-billed", annotations={"lading.dev/billing": "x"})
                await server.put(pod_path("billed"), billed)
                flags = Flags(
                    kubeconfig=str(server.write_kubeconfig(tmp_path / "config")),
                    central="http://{}:{}".format(*runner.addresses[0][:2]),
                )
                async with connect(flags) as client:
                    return await read_deciding(client, Central(client, flags))
        finally:
            await runner.cleanup()

    cluster = asyncio.run(scenario())
    assert ("billed" in {one.name for one in cluster.pending}) is (status == 200)  # central does not read that annotation
    scheduler = cluster.scheduler
    assert scheduler.policy is policy
    assert scheduler.limits.spread_containers_per_card == (3 if status == 200 else 0)
    assert ([kind.gpus for kind, _ in scheduler.forecast.workload.kinds] == [8]) is (status == 200)
    assert capsys.readouterr().err.count("warning") == warned
