"""Test ElasticQuotas of the API server: they apply from the first request, and their changes requeue pods; without quotas,
nothing changes."""

from pathlib import Path

import pytest

from central.api.watch import ABSENT_S
from central.controllers.quotas import SCAN_S
from central.quota.model import LABEL_QUOTA
from central.request.reasons import OfPod
from lading.log import Event
from tests.fakes.kube_objects import quota_path
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led, play

TEAM = {LABEL_QUOTA: "team"}


def touched(one: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in one.sent("/status")]


def is_of_quotas(request: Request) -> bool:
    return request.path.endswith("elasticquotas")


async def anew(one: Led) -> None:
    """Start another leader."""
    await one.leadership.end()
    await one.begin()


async def cards(one: Led, count: int = 4) -> None:
    await one.put_node("n1", count)


@pytest.mark.parametrize("flat", [False, True])
def test_a_quota_holds_from_the_first_question_on(tmp_path: Path, flat: bool) -> None:
    async def story(one: Led) -> None:
        await cards(one)
        await one.put_quota("default", least=1, most=1, flat=flat)
        await one.put_pod("a")
        assert await one.schedule("a") == ""
        await one.pause()
        await anew(one)
        await one.put_pod("b")
        assert await one.schedule("b") == REFUSED
        assert one.leadership.scheduler.counts.refused == {OfPod.QUOTA_EXCEEDED: 1}

    play(story, tmp_path)


def test_a_new_leader_places_no_pod_before_it_knows_the_quotas(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await cards(one)
        await one.put_quota("default", most=1)
        await one.put_pod("a")
        assert await one.schedule("a") == ""
        await one.put_pod("b")
        await one.leadership.end()
        one.server.fail(Fault(status=500), when=is_of_quotas, times=4)
        await one.begin()
        assert one.filter("b") == []

    play(story, tmp_path)


def test_a_pod_is_requeued_when_its_quota_has_room(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await cards(one)
        await one.put_quota("team", most=1)
        await one.pause(2 * SCAN_S)
        for name in ("a", "b"):
            await one.put_pod(name, labels=TEAM)
        assert await one.schedule("a") == ""
        assert await one.schedule("b") == REFUSED
        await one.pause(30)
        assert touched(one) == []
        await one.remove_pod("a")
        await one.pause(1)
        assert touched(one) == ["b"]
        assert await one.schedule("b") == ""

    play(story, tmp_path)


def test_a_quota_that_is_removed_lets_all_in(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await cards(one)
        await one.put_quota("team", most=0)
        await one.pause(2 * SCAN_S)
        await one.put_pod("a", labels=TEAM)
        assert await one.schedule("a") == REFUSED
        await one.server.remove(quota_path("team"))
        await one.pause(3 * SCAN_S)
        assert touched(one) == ["a"]
        assert await one.schedule("a") == ""

    play(story, tmp_path)


@pytest.mark.parametrize("status", [404, 403])
def test_without_the_kind_or_the_right_pods_are_placed(tmp_path: Path, status: int) -> None:
    async def story(one: Led) -> None:
        one.server.fail(Fault(status=status), when=is_of_quotas, times=6)
        before, warned = len(one.server.requests), one.records.count(Event.WATCH_FAILED)
        await anew(one)
        await one.put_pod("a", labels=TEAM)
        assert await one.schedule("a") == ""
        await one.pause(2.5 * ABSENT_S)
        requested = [request for request in one.server.requests[before:] if is_of_quotas(request)]
        assert len(requested) == 6  # two kinds, at the start and then each minute
        assert one.records.count(Event.WATCH_FAILED) == warned + (2 if status == 403 else 0)
        names = [watch.resource for watch in one.leadership.watches]
        assert ("elasticquotas.scheduling.sigs.k8s.io" in names) == (status == 403)
        await one.put_quota("team", most=0)  # now it is there
        await one.pause(ABSENT_S)
        await one.put_pod("b", labels=TEAM)
        assert await one.schedule("b") == REFUSED

    play(story, tmp_path)


def test_a_quota_that_cannot_be_read_refuses_its_pods(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await cards(one)
        await one.server.put(quota_path("team"), {"metadata": {"name": "team", "namespace": "default"}, "spec": {"max": 7}})
        await one.pause(2 * SCAN_S)
        await one.put_pod("a", labels=TEAM)
        result = one.leadership.scheduler.filter(one.shown("a"), one.node_names())
        (reason,) = result.never.values()
        assert reason.startswith("quota team is refused: its object cannot be read: ")
        assert reason.endswith(f"({OfPod.QUOTA_INVALID})")

    play(story, tmp_path)


def test_a_quota_in_the_status_of_which_something_changes_is_the_same(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_quota("team", most=1)
        await one.pause(2 * SCAN_S)
        tree = (snapshot := one.leadership.quotas.snapshot()) and snapshot.tree
        made = one.server.objects[quota_path("team")]
        await one.server.put(quota_path("team"), made | {"status": {"used": {"cpu": "1"}}})
        await one.pause(2 * SCAN_S)
        assert (again := one.leadership.quotas.snapshot()) is not None
        assert again.tree is tree

    play(story, tmp_path)
