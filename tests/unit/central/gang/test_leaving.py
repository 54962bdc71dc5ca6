"""Test members that leave their gang by an annotation, by another object or by their end: nothing stays reserved for them
there."""

import math
from collections.abc import Awaitable, Callable

import pytest

from central.api.watch import ABSENT_S
from central.controllers.gangs import PLAN_S
from central.gang.life import Phase
from central.ledger.model import Claim
from lading.vocabulary import GANG, GANG_MIN
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led
from tests.unit.central.gang.members import bound, claims, put_gang, put_member

PREFIX = "gang.scheduling.koordinator.sh/"
LABEL = "pod-group.scheduling.sigs.k8s.io"
POD_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/"
GROUP_OF_TWO = '["default/a","default/b"]'

Change = Callable[[Led], Awaitable[None]]


async def annotate(cluster: Led, name: str, **options: str) -> None:
    pod = cluster.json(name)
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **options}
    await cluster.server.put(pod_path(name), pod)
    await cluster.pause()


async def put_pod_group(cluster: Led, name: str, least: int, **annotations: str) -> None:
    text = {f"{PREFIX}{key}": value for key, value in annotations.items()}
    await cluster.server.put(f"{POD_GROUPS}{name}", {"metadata": {"annotations": text}, "spec": {"minMember": least}})
    await cluster.pause()


def check_plans(cluster: Led) -> None:
    """Check that each planned claim belongs to a member whose plan names it, and that each plan has an end."""
    own = cluster.leadership.ledger.snapshot().own
    planned = {uid for gang in cluster.leadership.gangs for uid in gang.plan}
    kept = {uid for gang in cluster.leadership.gangs for uid in gang.life.kept}
    assert {uid for uid, its in own.items() if Claim.PLANNED in its} == planned | kept
    assert all(gang.life.until < math.inf for gang in cluster.leadership.gangs if gang.phase is Phase.PLANNED)


async def gangs_by_annotations(cluster: Led) -> None:
    for gang, least in (("a", "2"), ("b", "3")):
        for number in range(2):
            await put_member(cluster, f"{gang}{number}", gang, least, age=number)


async def annotations_name_another_gang(cluster: Led) -> None:
    await annotate(cluster, "a1", **{GANG: "b", GANG_MIN: "3"})


async def gang_of_koordinator(cluster: Led) -> None:
    for name in ("a0", "a1"):
        await cluster.put_pod(name, annotations={f"{PREFIX}name": "a", f"{PREFIX}min-available": "2"})


async def annotations_name_another_group(cluster: Led) -> None:
    await annotate(cluster, "a1", **{f"{PREFIX}groups": GROUP_OF_TWO})


async def gang_by_object(cluster: Led) -> None:
    await put_pod_group(cluster, "a", 2)
    await cluster.pause(ABSENT_S)
    for name in ("a0", "a1"):
        await cluster.put_pod(name, labels={LABEL: "a"})


async def object_names_another_gang(cluster: Led) -> None:
    await put_pod_group(cluster, "a", 2, groups=GROUP_OF_TWO)


async def object_names_more_members(cluster: Led) -> None:
    await put_pod_group(cluster, "a", 3)


async def object_is_removed(cluster: Led) -> None:
    await cluster.server.remove(f"{POD_GROUPS}a")
    await cluster.pause()


async def member_is_being_deleted(cluster: Led) -> None:
    """Delete a member whose finalizer, set by its Job, keeps it for a while."""
    pod = cluster.json("a1")
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    await cluster.server.put(pod_path("a1"), pod)
    await cluster.pause()


async def member_names_another_minimum(cluster: Led) -> None:
    await annotate(cluster, "a1", **{GANG_MIN: "1"})


@pytest.mark.parametrize(
    ("begin", "change"),
    [
        (gangs_by_annotations, annotations_name_another_gang),
        (gang_of_koordinator, annotations_name_another_group),
        (gang_by_object, object_names_another_gang),
        (gang_by_object, object_names_more_members),
        (gang_by_object, object_is_removed),
        (gangs_by_annotations, member_is_being_deleted),
        (gangs_by_annotations, member_names_another_minimum),
    ],
)
async def test_a_plan_ends_with_a_member_that_it_needs(
    cluster: Led, scheduler: KubeScheduler, begin: Change, change: Change
) -> None:
    await cluster.report("n1", 4)
    scheduler.ignores.update({"a0", "a1", "b0", "b1"})
    await begin(cluster)
    await scheduler.run(1)
    assert claims(cluster) == 2
    await change(cluster)
    held = [uid for uid, own in cluster.leadership.ledger.snapshot().own.items() if Claim.PLANNED in own]
    assert (held, [gang.phase for gang in cluster.leadership.gangs if gang.plan]) == ([], [])
    await scheduler.run(2)
    check_plans(cluster)
    await scheduler.run(PLAN_S + 10)
    check_plans(cluster)


async def test_a_member_that_changes_its_gang_starts_with_the_new_gang(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3)
    scheduler.ignores.update({"a0", "a1"})
    await gangs_by_annotations(cluster)
    await scheduler.run(1)
    scheduler.ignores.clear()
    await annotations_name_another_gang(cluster)
    scheduler.ask("a1")
    await scheduler.run(5)
    assert bound(cluster) == ["a1", "b0", "b1"]


async def test_no_member_is_bound_alone_when_the_object_with_the_minimum_is_removed(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    await gang_by_object(cluster)
    scheduler.ignores.add("a1")
    await scheduler.run(1)
    await object_is_removed(cluster)
    await annotate(cluster, "a0", note="touched")
    await scheduler.run(10)
    assert bound(cluster) == []
    scheduler.ignores.clear()
    await put_pod_group(cluster, "a", 2)
    scheduler.ask("a1")
    await scheduler.run(10)
    assert bound(cluster) == ["a0", "a1"]


async def test_a_gang_whose_last_member_is_deleted_before_its_binding_blocks_no_other_gang(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    scheduler.ignores.add("a0")
    await put_gang(cluster, "a", 1)
    await scheduler.run(1)
    assert scheduler.ask("a0") == "n1"
    await cluster.remove_pod("a0")
    await put_gang(cluster, "b", 2)
    await scheduler.run(5)
    assert bound(cluster) == ["b0", "b1"]


async def test_a_member_whose_plan_ended_on_its_way_to_be_bound_is_not_bound_alone(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    """Let the barrier release the member, and delete another member before the Binding is sent."""
    await cluster.report("n1", 4)
    scheduler.ignores.update({"a0", "a1"})
    names = await put_gang(cluster, "a", 2)
    await scheduler.run(1)
    assert {scheduler.ask(name) for name in names} == {"n1"}
    keeper = cluster.leadership._gang_keeper
    assert [keeper.enter(cluster.uid(name), "n1") == "" for name in names] == [False, True]
    a0 = cluster.uid("a0")
    await cluster.remove_pod("a1")
    reserved = cluster.leadership.scheduler.reserve(a0, "n1")
    assert "gang-incomplete" in str(reserved)
    assert claims(cluster) == 0
    assert scheduler.ask("a0") == REFUSED
