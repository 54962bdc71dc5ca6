"""Test that the API server's lists are read as central's own code reads them."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from central.ledger.model import Claim
from central.request.model import Policy
from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.deciding import read_deciding
from kubectl_lading.flags import Flags
from kubectl_lading.lists import NotInstalledError
from lading.errors import LadingError
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.resource import NODE_DEVICES, NODES, PODS, Resource
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import deep_fields, devices, devices_path, node, node_path, pod, pod_path
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.small_cluster import SmallCluster, uid_of
from tests.unit.kubectl_lading.test_central import serve


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeServer]:
    async with FakeKubeServer() as server:
        yield server


async def read(server: FakeKubeServer, folder: Path) -> Cluster:
    async with connect(Flags(kubeconfig=str(server.write_kubeconfig(folder / "config")))) as client:
        return await read_cluster(client)


async def test_holders_and_waiting_pods_are_read(api: FakeKubeServer, tmp_path: Path) -> None:
    SmallCluster().fill(api.store)
    cluster = await read(api, tmp_path)
    held = {one.holder.name: one for one in cluster.ledger.holders("h100-1")}
    assert held.keys() == {"train-0", "serve-a", "serve-b"}
    assert set(held["train-0"].claims) == {Claim.BOUND, Claim.GRANTED}
    assert {one.name for one in cluster.pending} == {"next-run", "too-many"}
    assert not cluster.ledger.capacity("old-1").reachable
    assert cluster.problems == []
    assert uid_of("train-0") in {one.metadata.uid for one in cluster.pods}


async def test_a_deeply_nested_pod_is_read_like_any_other(api: FakeKubeServer, tmp_path: Path) -> None:
    deep = pod("deep", uid="uid-deep")
    deep["metadata"] |= deep_fields()
    body = msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": [deep]})
    SmallCluster().fill(api.store)
    listed = Fault(body=body, headers={"Content-Type": "application/json"})
    api.fail(listed, when=lambda request: request.path == PODS.path())
    cluster = await read(api, tmp_path)
    assert {one.name for one in cluster.pending} == {"deep"}
    assert cluster.problems == []


@pytest.mark.parametrize(
    ("resource", "error", "named", "hint"),
    [
        (NODE_DEVICES, NotInstalledError, "nodedevices.devices.lading.dev", "kubectl lading install"),
        (NODES, NotFoundError, NODES.path(), ""),  # another server than an API server, by a wrong path in the kubeconfig
    ],
    ids=["a cluster without NodeDevices", "another server than an API server"],
)
async def test_a_resource_that_the_server_does_not_serve_is_an_error_with_what_to_do(
    api: FakeKubeServer, tmp_path: Path, resource: Resource, error: type[LadingError], named: str, hint: str
) -> None:
    missing = Fault(status=404, body=b"404 page not found\n")  # text, and no Status
    api.fail(missing, when=lambda request: request.path == resource.path())
    with pytest.raises(error) as caught:
        await read(api, tmp_path)
    assert named in caught.value.message
    assert hint in caught.value.hint


async def test_an_unreadable_object_is_reported_and_all_others_are_read(api: FakeKubeServer, tmp_path: Path) -> None:
    api.store.load(devices_path("n1"), devices("n1"))
    api.store.load(devices_path("odd"), {"metadata": {"name": "odd"}, "status": {"gpus": 7}})
    api.store.load(node_path("n1"), node("n1"))
    api.store.load(pod_path("bad"), pod("bad", node="n1", annotations={ASSIGNMENT: "{"}))
    api.store.load(pod_path("bare"), pod("bare", node="n1"))
    cluster = await read(api, tmp_path)
    assert cluster.reports.keys() == {"n1"}
    assert any("NodeDevices odd" in one for one in cluster.problems)
    assert any("default/bad" in one for one in cluster.problems)
    assert [one.metadata.name for one in cluster.unassigned] == ["bare"]


async def test_a_refused_list_is_an_error(api: FakeKubeServer, tmp_path: Path) -> None:
    api.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path.endswith("/pods"))
    with pytest.raises(Exception, match="pods") as caught:
        await read(api, tmp_path)
    assert isinstance(caught.value.__cause__, ForbiddenError)


CONFIGURATION = msgspec.json.encode(
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
async def test_the_configuration_of_central_is_used_if_central_answers(
    api: FakeKubeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, policy: Policy, warned: int
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=CONFIGURATION if status == 200 else b"no")

    SmallCluster().fill(api.store)
    await api.put(pod_path("billed"), pod("billed", uid="uid-billed", annotations={"lading.dev/billing": "x"}))
    async with serve(answer) as url:
        flags = Flags(kubeconfig=str(api.write_kubeconfig(tmp_path / "config")), central=url)
        async with connect(flags) as client:
            cluster = await read_deciding(client, Central(client, flags))
    assert ("billed" in {one.name for one in cluster.pending}) is (status == 200)  # central does not read that annotation
    scheduler = cluster.scheduler
    assert scheduler.policy is policy
    assert scheduler.limits.spread_containers_per_card == (3 if status == 200 else 0)
    assert ([kind.gpus for kind, _ in scheduler.forecast.workload.kinds] == [8]) is (status == 200)
    assert capsys.readouterr().err.count("warning") == warned
