"""Test a gang whose bound members have ended or are being deleted: it starts again, whole or not at all."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from central.controllers.gangs import FINISH_S
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led, play
from tests.unit.central.gang.stories import bound, put_gang, put_member, reasons
from tests.unit.central.gang.test_binding import is_binding_of


async def delete(one: Led, names: Iterable[str]) -> None:
    """Delete pods that take their time to end."""
    for name in names:
        pod = one.json(name)
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        await one.server.put(pod_path(name), pod)


async def remove(one: Led, names: Iterable[str]) -> None:
    for name in names:
        await one.server.remove(pod_path(name))
    await one.pause()


async def replace(one: Led, names: Iterable[str]) -> list[str]:
    made = [f"{name}-new" for name in names]
    for name in made:
        await put_member(one, name, "g", "4", age=9)
    return made


@pytest.mark.parametrize("leader", ["the same leader", "a new leader"])
def test_a_job_whose_pods_are_replaced_while_they_end_starts_whole(tmp_path: Path, leader: str) -> None:
    """Replace the pods of a Job: with the default podReplacementPolicy it creates new pods while the old ones end; two cards
    are free meanwhile."""

    async def story(one: Led) -> None:
        await one.report("n1", 6)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 4)
        await scheduler.run(5)
        assert bound(one) == names
        await delete(one, names)
        made = await replace(one, names)
        if leader == "a new leader":
            await one.leadership.end()
            await one.begin()
        await scheduler.run(10)
        assert bound(one) == []
        assert {code for name in made for code in reasons(scheduler, name)} == {"gang-no-room"}
        assert one.free_cards() == 2
        await remove(one, names)
        await scheduler.run(5)
        assert bound(one) == made
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("requested", [True, False])
def test_members_that_waited_as_ordinary_pods_start_together_once_none_is_bound(tmp_path: Path, requested: bool) -> None:
    """Delete the old pods as by a drain; afterwards two of their cards are out of service."""

    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 4)
        await scheduler.run(5)
        made = await replace(one, names)
        if requested:
            await scheduler.run(2)
            assert reasons(scheduler, made[0]) == {"too-few-free-gpus"}
        await one.report("n1", 2)
        await remove(one, names)
        await scheduler.run(10)
        assert bound(one) == []
        assert {code for name in made for code in reasons(scheduler, name)} <= {"gang-too-large", "gang-no-room"}
        await one.report("n1", 4)
        await scheduler.run(5)
        assert bound(one) == made
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_that_is_evicted_member_by_member_starts_whole(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 4)
        await scheduler.run(5)
        for name in names:
            record = one.leadership.ledger.pod(one.uid(name))
            assert record is not None
            await one.client.evict(namespace=record.namespace, name=record.name, uid=record.uid, dry_run=False)
        await one.pause()
        assert bound(one) == []
        made = await replace(one, names)
        await one.report("n1", 3)
        await remove(one, names)
        await scheduler.run(2 * FINISH_S)
        assert bound(one) == []
        await one.report("n1", 4)
        await scheduler.run(5)
        assert bound(one) == made
        await scheduler.end()

    play(story, tmp_path)


def test_one_member_that_is_left_is_enough_for_ordinary_replacements(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 4)
        await scheduler.run(5)
        await delete(one, names[1:])
        await remove(one, names[1:])
        await put_member(one, "new", "g", "4", age=9)
        await scheduler.run(3)
        assert bound(one) == [names[0], "new"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_start_whose_first_members_are_deleted_begins_anew(tmp_path: Path) -> None:
    """Bind two of four members, and delete them before the others follow: one of the others alone is no start."""

    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=9)
        await put_gang(one, "g", 4)
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1"]
        scheduler.ignores.update({"g2", "g3"})
        await delete(one, ["g0", "g1"])
        await one.pause()
        assert await one.bind("g2", "n1") != ""
        await remove(one, ["g0", "g1"])
        await one.put_pod("single", {"lading.dev/gpu": "3"})
        await scheduler.run(3)
        assert bound(one) == ["single"]
        await scheduler.end()

    play(story, tmp_path)
