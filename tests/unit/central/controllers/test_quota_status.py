"""Test what quotas use, written into their objects: when it changed, a few at a time, and no more without the right."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.controllers.quotas import MAX_WRITES_PER_SCAN, REFUSED_S, SCAN_S, WRITE_S
from central.quota.model import KOORDINATOR_PREFIX, LABEL_PREEMPTIBLE, LABEL_QUOTA
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import quota_path
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led, play

TEAM = {LABEL_QUOTA: "team"}


def is_patch(request: Request) -> bool:
    return request.method == "PATCH" and "elasticquotas" in request.path


def patches(one: Led) -> list[Request]:
    return [request for request in one.server.requests if is_patch(request)]


def annotation(one: Led, name: str, key: str) -> Any:
    text = one.server.objects[quota_path(name)]["metadata"]["annotations"][KOORDINATOR_PREFIX + key]
    return msgspec.json.decode(text)


def used(one: Led, name: str, *, flat: bool = False) -> Any:
    return one.server.objects[quota_path(name, flat=flat)]["status"]["used"]


async def written(one: Led) -> None:
    await one.pause(SCAN_S + 2 * WRITE_S)


def test_koordinators_keys(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 4)
        await one.put_quota("top", least=3, most=4, labels={"is-parent": "true"})
        await one.put_quota("team", least=2, most=3, labels={"parent": "top", "allow-lent-resource": "false"})
        await one.pause(2 * SCAN_S)
        await one.put_pod("a", labels=TEAM | {LABEL_PREEMPTIBLE: "false"})
        assert await one.schedule("a") == ""
        await written(one)
        assert [used(one, name) for name in ("team", "top")] == [{RESOURCE_GPU: "1"}] * 2
        assert annotation(one, "team", "child-request") == {RESOURCE_GPU: "1"}
        assert annotation(one, "team", "request") == {RESOURCE_GPU: "2"}  # it does not lend
        assert annotation(one, "team", "runtime") == {RESOURCE_GPU: "2"}
        assert annotation(one, "team", "non-preemptible-used") == {RESOURCE_GPU: "1"}
        assert annotation(one, "top", "child-request") == {RESOURCE_GPU: "2"}
        for name in ("b", "c", "d"):
            await one.put_pod(name, labels=TEAM)
        assert [await one.schedule(name) for name in ("b", "c", "d")] == ["", "", REFUSED]
        await written(one)
        assert annotation(one, "team", "child-request") == {RESOURCE_GPU: "4"}
        assert annotation(one, "team", "runtime") == {RESOURCE_GPU: "3"}
        assert used(one, "team") == {RESOURCE_GPU: "3"}

    play(story, tmp_path)


def test_scheduler_plugins_status(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_quota("q", least=2, most=3, flat=True)
        await one.pause(2 * SCAN_S)
        await one.put_pod("a")
        assert await one.schedule("a") == ""
        await written(one)
        assert used(one, "q", flat=True) == {RESOURCE_GPU: "1"}
        assert {request.path for request in patches(one)} == {quota_path("q", flat=True) + "/status"}

    play(story, tmp_path)


def test_nothing_is_written_that_is_there(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_quota("team")
        await written(one)
        assert len(patches(one)) == 1
        await one.pause(10 * WRITE_S)
        await one.leadership.end()
        await one.begin()
        await written(one)
        assert len(patches(one)) == 1

    play(story, tmp_path)


def test_a_status_of_a_resource_that_is_no_longer_limited_is_removed(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_quota("team")
        made = one.server.objects[quota_path("team")] | {"status": {"used": {"cpu": "3"}}}
        await one.server.put(quota_path("team"), made)
        await written(one)
        assert used(one, "team") == {RESOURCE_GPU: "0"}

    play(story, tmp_path)


def test_so_many_objects_in_one_scan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        count = MAX_WRITES_PER_SCAN + 10
        for number in range(count):
            await one.put_quota(f"q{number}")
        await one.pause(WRITE_S + SCAN_S)
        before = len(patches(one))
        assert 0 < before <= 2 * MAX_WRITES_PER_SCAN
        await one.pause(2 * WRITE_S)
        assert len({request.path for request in patches(one)}) == count

    play(story, tmp_path)


def test_without_the_right_it_is_reported_once(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.server.fail(Fault(status=403), when=is_patch, times=3)
        await one.put_quota("team")
        await one.pause(2.5 * REFUSED_S)
        assert len(patches(one)) == 3
        assert one.records.count(Event.QUOTA_UNWRITTEN) == 1
        await one.pause(REFUSED_S)
        assert used(one, "team") == {RESOURCE_GPU: "0"}

    play(story, tmp_path)


@pytest.mark.parametrize("refused", [404, 409])
def test_an_object_that_is_deleted_holds_up_no_other(tmp_path: Path, refused: int) -> None:
    async def story(one: Led) -> None:
        one.server.fail(Fault(status=refused), when=is_patch)
        await one.put_quota("a")
        await one.put_quota("b")
        await written(one)
        assert [used(one, name) for name in "ab"] == [{RESOURCE_GPU: "0"}] * 2
        assert one.records.count(Event.QUOTA_UNWRITTEN) == 0

    play(story, tmp_path)
