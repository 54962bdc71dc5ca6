"""Test pods that are already bound when they name a gang: they count for its minimum, and do not change otherwise."""

from pathlib import Path

import msgspec
import pytest

from central.controllers.gangs import FINISH_S
from central.gang.gang import Gang
from central.gang.life import Phase
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led, is_binding, play
from tests.unit.central.gang.stories import bound, end_evicted, put_gang, put_member


async def annotate(one: Led, name: str, text: dict[str, str]) -> None:
    pod = one.json(name)
    pod["metadata"]["annotations"] |= text
    await one.server.put(pod_path(name), pod)
    await one.pause()


async def join(one: Led, name: str, least: int) -> None:
    await annotate(one, name, {GANG: "g", GANG_MIN: str(least)})


def gang_of(one: Led, name: str) -> Gang:
    result = one.leadership.gangs.of(one.uid(name))
    assert result is not None
    return result[0]


@pytest.mark.parametrize("leader", ["the same leader", "a new leader"])
def test_a_pod_that_was_bound_before_it_named_a_gang_is_not_evicted_for_it(tmp_path: Path, leader: str) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        assert bound(one) == ["runs"]
        await join(one, "runs", 99)
        if leader == "a new leader":
            await one.leadership.end()
            await one.begin()
        await scheduler.run(2 * FINISH_S)
        assert bound(one) == ["runs"]
        assert gang_of(one, "runs").phase is Phase.GATHERING
        await scheduler.end()

    play(story, tmp_path)


def test_it_does_not_put_its_gang_before_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        await join(one, "runs", 3)
        for number in range(2):
            await put_member(one, f"g{number}", "g", "3", age=20)
        await put_gang(one, "older", 2)
        await scheduler.run(5)
        assert sorted(bound(one)) == ["older0", "older1", "runs"]
        await scheduler.end()

    play(story, tmp_path)


def test_it_counts_for_the_minimum(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        await join(one, "runs", 3)
        for number in range(2):
            await put_member(one, f"g{number}", "g", "3", age=20)
        await scheduler.run(5)
        assert sorted(bound(one)) == ["g0", "g1", "runs"]
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("gang", [False, True], ids=["for a pod", "for a gang"])
def test_it_is_not_protected_from_pods_of_higher_priority(tmp_path: Path, gang: bool) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        await join(one, "runs", 99)
        if gang:
            await put_gang(one, "high", 1, priority=10)
        else:
            await one.put_pod("high", priority=10)
        await scheduler.run(5)
        assert await end_evicted(one) == ["runs"]
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("written", [True, False], ids=["by this version", "by one that did not write the gang"])
def test_a_new_leader_knows_which_members_were_bound_with_their_gang(tmp_path: Path, written: bool) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=lambda request: is_binding(request) and "/g2/" in request.path, times=99)
        await put_gang(one, "g", 3)
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1"]
        for name in ("g0", "g1"):
            text = one.json(name)["metadata"]["annotations"][ASSIGNMENT]
            message = msgspec.json.decode(text)
            assert message.pop("gang") == "lading:default/g"
            if not written:
                await annotate(one, name, {ASSIGNMENT: msgspec.json.encode(message).decode()})
        await one.leadership.end()
        await one.begin()
        assert gang_of(one, "g0").phase is Phase.BINDING
        await scheduler.run(FINISH_S + 10)
        assert bound(one) == []
        await scheduler.end()

    play(story, tmp_path)
