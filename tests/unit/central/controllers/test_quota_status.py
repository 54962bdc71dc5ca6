"""Test what quotas use, written into their objects: when it changed, a few at a time, and no more without the right."""

from typing import Any

import msgspec
import pytest

from central.controllers.quotas import MAX_WRITES_PER_SCAN, REFUSED_S, SCAN_S, WRITE_S
from central.quota.model import KOORDINATOR_PREFIX, LABEL_PREEMPTIBLE, LABEL_QUOTA
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import quota_path
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led

TEAM = {LABEL_QUOTA: "team"}


def is_patch(request: Request) -> bool:
    return request.method == "PATCH" and "elasticquotas" in request.path


def patches(cluster: Led) -> list[Request]:
    return [request for request in cluster.server.requests if is_patch(request)]


def annotation(cluster: Led, name: str, key: str) -> Any:
    text = cluster.server.objects[quota_path(name)]["metadata"]["annotations"][KOORDINATOR_PREFIX + key]
    return msgspec.json.decode(text)


def used(cluster: Led, name: str, *, flat: bool = False) -> Any:
    return cluster.server.objects[quota_path(name, flat=flat)]["status"]["used"]


async def written(cluster: Led) -> None:
    await cluster.pause(SCAN_S + 2 * WRITE_S)


async def test_koordinators_keys(cluster: Led) -> None:
    await cluster.put_node("n1", 4)
    await cluster.put_quota("top", least=3, most=4, labels={"is-parent": "true"})
    await cluster.put_quota("team", least=2, most=3, labels={"parent": "top", "allow-lent-resource": "false"})
    await cluster.pause(2 * SCAN_S)
    await cluster.place("a", labels=TEAM | {LABEL_PREEMPTIBLE: "false"})
    await written(cluster)
    assert [used(cluster, name) for name in ("team", "top")] == [{RESOURCE_GPU: "1"}] * 2
    assert annotation(cluster, "team", "child-request") == {RESOURCE_GPU: "1"}
    assert annotation(cluster, "team", "request") == {RESOURCE_GPU: "2"}  # it does not lend
    assert annotation(cluster, "team", "runtime") == {RESOURCE_GPU: "2"}
    assert annotation(cluster, "team", "non-preemptible-used") == {RESOURCE_GPU: "1"}
    assert annotation(cluster, "top", "child-request") == {RESOURCE_GPU: "2"}
    for name in ("b", "c", "d"):
        await cluster.put_pod(name, labels=TEAM)
    assert [await cluster.schedule(name) for name in ("b", "c", "d")] == ["", "", REFUSED]
    await written(cluster)
    assert annotation(cluster, "team", "child-request") == {RESOURCE_GPU: "4"}
    assert annotation(cluster, "team", "runtime") == {RESOURCE_GPU: "3"}
    assert used(cluster, "team") == {RESOURCE_GPU: "3"}


async def test_scheduler_plugins_status(cluster: Led) -> None:
    await cluster.put_quota("q", least=2, most=3, flat=True)
    await cluster.pause(2 * SCAN_S)
    await cluster.place("a")
    await written(cluster)
    assert used(cluster, "q", flat=True) == {RESOURCE_GPU: "1"}
    assert {request.path for request in patches(cluster)} == {quota_path("q", flat=True) + "/status"}


async def test_nothing_is_written_that_is_there(cluster: Led) -> None:
    await cluster.put_quota("team")
    await written(cluster)
    assert len(patches(cluster)) == 1
    await cluster.pause(10 * WRITE_S)
    await cluster.lead_again()
    await written(cluster)
    assert len(patches(cluster)) == 1


async def test_a_status_of_a_resource_that_is_no_longer_limited_is_removed(cluster: Led) -> None:
    await cluster.put_quota("team")
    made = cluster.server.objects[quota_path("team")] | {"status": {"used": {"cpu": "3"}}}
    await cluster.server.put(quota_path("team"), made)
    await written(cluster)
    assert used(cluster, "team") == {RESOURCE_GPU: "0"}


async def test_so_many_objects_in_one_scan(cluster: Led) -> None:
    count = MAX_WRITES_PER_SCAN + 10
    for number in range(count):
        await cluster.put_quota(f"q{number}")
    await cluster.pause(WRITE_S + SCAN_S)
    before = len(patches(cluster))
    assert 0 < before <= 2 * MAX_WRITES_PER_SCAN
    await cluster.pause(2 * WRITE_S)
    assert len({request.path for request in patches(cluster)}) == count


async def test_without_the_right_it_is_reported_once(cluster: Led) -> None:
    cluster.server.fail(Fault(status=403), when=is_patch, times=3)
    await cluster.put_quota("team")
    await cluster.pause(2.5 * REFUSED_S)
    assert len(patches(cluster)) == 3
    assert cluster.records.count(Event.QUOTA_UNWRITTEN) == 1
    await cluster.pause(REFUSED_S)
    assert used(cluster, "team") == {RESOURCE_GPU: "0"}


@pytest.mark.parametrize("refused", [404, 409])
async def test_an_object_that_is_deleted_holds_up_no_other(cluster: Led, refused: int) -> None:
    cluster.server.fail(Fault(status=refused), when=is_patch)
    await cluster.put_quota("a")
    await cluster.put_quota("b")
    await written(cluster)
    assert [used(cluster, name) for name in "ab"] == [{RESOURCE_GPU: "0"}] * 2
    assert cluster.records.count(Event.QUOTA_UNWRITTEN) == 0
