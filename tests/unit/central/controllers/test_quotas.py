"""Test ElasticQuotas of the API server: they apply from the first request, and their changes requeue pods; without quotas,
nothing changes."""

import pytest

from central.api.watch import ABSENT_S
from central.controllers.quotas import SCAN_S
from central.quota.model import LABEL_QUOTA
from central.request.reasons import OfPod
from lading.log import Event
from tests.fakes.kube_objects import quota_path
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led

TEAM = {LABEL_QUOTA: "team"}


def touched(cluster: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in cluster.sent("/status")]


def is_of_quotas(request: Request) -> bool:
    return request.path.endswith("elasticquotas")


async def anew(cluster: Led) -> None:
    """Start another leader."""
    await cluster.lead_again()


async def cards(cluster: Led, count: int = 4) -> None:
    await cluster.put_node("n1", count)


@pytest.mark.parametrize("flat", [False, True])
async def test_a_quota_holds_from_the_first_question_on(cluster: Led, flat: bool) -> None:
    await cards(cluster)
    await cluster.put_quota("default", least=1, most=1, flat=flat)
    await cluster.place("a")
    await anew(cluster)
    await cluster.refuse("b")
    assert cluster.leadership.scheduler.counts.refused == {OfPod.QUOTA_EXCEEDED: 1}


async def test_a_new_leader_places_no_pod_before_it_knows_the_quotas(cluster: Led) -> None:
    await cards(cluster)
    await cluster.put_quota("default", most=1)
    await cluster.place("a")
    await cluster.put_pod("b")
    await cluster.leadership.end()
    cluster.server.fail(Fault(status=500), when=is_of_quotas, times=4)
    await cluster.begin()
    assert cluster.filter("b") == []


async def test_a_pod_is_requeued_when_its_quota_has_room(cluster: Led) -> None:
    await cards(cluster)
    await cluster.put_quota("team", most=1)
    await cluster.pause(2 * SCAN_S)
    for name in ("a", "b"):
        await cluster.put_pod(name, labels=TEAM)
    assert await cluster.schedule("a") == ""
    assert await cluster.schedule("b") == REFUSED
    await cluster.pause(30)
    assert touched(cluster) == []
    await cluster.remove_pod("a")
    await cluster.pause(1)
    assert touched(cluster) == ["b"]
    assert await cluster.schedule("b") == ""


async def test_a_quota_that_is_removed_lets_all_in(cluster: Led) -> None:
    await cards(cluster)
    await cluster.put_quota("team", most=0)
    await cluster.pause(2 * SCAN_S)
    await cluster.refuse("a", labels=TEAM)
    await cluster.server.remove(quota_path("team"))
    await cluster.pause(3 * SCAN_S)
    assert touched(cluster) == ["a"]
    assert await cluster.schedule("a") == ""


@pytest.mark.parametrize("status", [404, 403])
async def test_without_the_kind_or_the_right_pods_are_placed(cluster: Led, status: int) -> None:
    cluster.server.fail(Fault(status=status), when=is_of_quotas, times=6)
    before, warned = len(cluster.server.requests), cluster.records.count(Event.WATCH_FAILED)
    await anew(cluster)
    await cluster.place("a", labels=TEAM)
    await cluster.pause(2.5 * ABSENT_S)
    requested = [request for request in cluster.server.requests[before:] if is_of_quotas(request)]
    assert len(requested) == 6  # two kinds, at the start and then each minute
    assert cluster.records.count(Event.WATCH_FAILED) == warned + (2 if status == 403 else 0)
    names = [watch.resource for watch in cluster.leadership.watches]
    assert ("elasticquotas.scheduling.sigs.k8s.io" in names) == (status == 403)
    await cluster.put_quota("team", most=0)  # now it is there
    await cluster.pause(ABSENT_S)
    await cluster.refuse("b", labels=TEAM)


async def test_a_quota_that_cannot_be_read_refuses_its_pods(cluster: Led) -> None:
    await cards(cluster)
    await cluster.server.put(quota_path("team"), {"metadata": {"name": "team", "namespace": "default"}, "spec": {"max": 7}})
    await cluster.pause(2 * SCAN_S)
    await cluster.put_pod("a", labels=TEAM)
    result = cluster.leadership.scheduler.filter(cluster.shown("a"), cluster.node_names())
    (reason,) = result.never.values()
    assert reason.startswith("quota team is refused: its object cannot be read: ")
    assert reason.endswith(f"({OfPod.QUOTA_INVALID})")


async def test_a_quota_in_the_status_of_which_something_changes_is_the_same(cluster: Led) -> None:
    await cluster.put_quota("team", most=1)
    await cluster.pause(2 * SCAN_S)
    tree = (snapshot := cluster.leadership.quotas.snapshot()) and snapshot.tree
    made = cluster.server.objects[quota_path("team")]
    await cluster.server.put(quota_path("team"), made | {"status": {"used": {"cpu": "1"}}})
    await cluster.pause(2 * SCAN_S)
    assert (again := cluster.leadership.quotas.snapshot()) is not None
    assert again.tree is tree
