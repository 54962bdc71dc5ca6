"""Test a gang whose bound members have ended or are being deleted: it starts again, whole or not at all."""

from collections.abc import Iterable

import pytest

from central.controllers.gangs import FINISH_S
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led
from tests.unit.central.gang.members import bound, put_gang, put_member, reasons
from tests.unit.central.gang.test_binding import is_binding_of


async def delete(cluster: Led, names: Iterable[str]) -> None:
    """Delete pods that take their time to end."""
    for name in names:
        pod = cluster.json(name)
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        await cluster.server.put(pod_path(name), pod)


async def remove(cluster: Led, names: Iterable[str]) -> None:
    for name in names:
        await cluster.server.remove(pod_path(name))
    await cluster.pause()


async def replace(cluster: Led, names: Iterable[str]) -> list[str]:
    made = [f"{name}-new" for name in names]
    for name in made:
        await put_member(cluster, name, "g", "4", age=9)
    return made


@pytest.mark.parametrize("leader", ["the same leader", "a new leader"])
async def test_a_job_whose_pods_are_replaced_while_they_end_starts_whole(
    cluster: Led, scheduler: KubeScheduler, leader: str
) -> None:
    """Replace the pods of a Job: with the default podReplacementPolicy it creates new pods while the old ones end; two cards
    are free meanwhile."""
    await cluster.report("n1", 6)
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(5)
    assert bound(cluster) == names
    await delete(cluster, names)
    made = await replace(cluster, names)
    if leader == "a new leader":
        await cluster.lead_again()
    await scheduler.run(10)
    assert bound(cluster) == []
    assert {code for name in made for code in reasons(scheduler, name)} == {"gang-no-room"}
    assert cluster.free_cards() == 2
    await remove(cluster, names)
    await scheduler.run(5)
    assert bound(cluster) == made


@pytest.mark.parametrize("requested", [True, False])
async def test_members_that_waited_as_ordinary_pods_start_together_once_none_is_bound(
    cluster: Led, scheduler: KubeScheduler, requested: bool
) -> None:
    """Delete the old pods as by a drain; afterwards two of their cards are out of service."""
    await cluster.report("n1", 4)
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(5)
    made = await replace(cluster, names)
    if requested:
        await scheduler.run(2)
        assert reasons(scheduler, made[0]) == {"too-few-free-gpus"}
    await cluster.report("n1", 2)
    await remove(cluster, names)
    await scheduler.run(10)
    assert bound(cluster) == []
    assert {code for name in made for code in reasons(scheduler, name)} <= {"gang-too-large", "gang-no-room"}
    await cluster.report("n1", 4)
    await scheduler.run(5)
    assert bound(cluster) == made


async def test_a_gang_that_is_evicted_member_by_member_starts_whole(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(5)
    for name in names:
        record = cluster.leadership.ledger.pod(cluster.uid(name))
        assert record is not None
        await cluster.client.evict(namespace=record.namespace, name=record.name, uid=record.uid, dry_run=False)
    await cluster.pause()
    assert bound(cluster) == []
    made = await replace(cluster, names)
    await cluster.report("n1", 3)
    await remove(cluster, names)
    await scheduler.run(2 * FINISH_S)
    assert bound(cluster) == []
    await cluster.report("n1", 4)
    await scheduler.run(5)
    assert bound(cluster) == made


async def test_replacements_are_placed_alone_while_one_member_still_runs(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(5)
    await delete(cluster, names[1:])
    await remove(cluster, names[1:])
    await put_member(cluster, "new", "g", "4", age=9)
    await scheduler.run(3)
    assert bound(cluster) == [names[0], "new"]


async def test_a_start_whose_first_members_are_deleted_begins_anew(cluster: Led, scheduler: KubeScheduler) -> None:
    """Bind two of four members, and delete them before the others follow: one of the others alone is no start."""
    await cluster.report("n1", 4)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=9)
    await put_gang(cluster, "g", 4)
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1"]
    scheduler.ignores.update({"g2", "g3"})
    await delete(cluster, ["g0", "g1"])
    await cluster.pause()
    assert await cluster.bind("g2", "n1") != ""
    await remove(cluster, ["g0", "g1"])
    await cluster.put_pod("single", {"lading.dev/gpu": "3"})
    await scheduler.run(3)
    assert bound(cluster) == ["single"]
