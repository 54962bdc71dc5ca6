"""Test members that leave their gang by an annotation, by another object or by their end: nothing stays reserved for them
there."""

import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from central.api.watch import ABSENT_S
from central.controllers.gangs import PLAN_S
from central.gang.life import Phase
from central.ledger.model import Claim
from lading.vocabulary import GANG, GANG_MIN
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led, play
from tests.unit.central.gang.stories import bound, claims, put_gang, put_member

PREFIX = "gang.scheduling.koordinator.sh/"
LABEL = "pod-group.scheduling.sigs.k8s.io"
POD_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/"
GROUP_OF_TWO = '["default/a","default/b"]'

Change = Callable[[Led], Awaitable[None]]


async def annotate(one: Led, name: str, **options: str) -> None:
    pod = one.json(name)
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **options}
    await one.server.put(pod_path(name), pod)
    await one.pause()


async def put_pod_group(one: Led, name: str, least: int, **annotations: str) -> None:
    text = {f"{PREFIX}{key}": value for key, value in annotations.items()}
    await one.server.put(f"{POD_GROUPS}{name}", {"metadata": {"annotations": text}, "spec": {"minMember": least}})
    await one.pause()


def check_plans(one: Led) -> None:
    """Check that each planned claim belongs to a member whose plan names it, and that each plan has an end."""
    own = one.leadership.ledger.snapshot().own
    planned = {uid for gang in one.leadership.gangs for uid in gang.plan}
    kept = {uid for gang in one.leadership.gangs for uid in gang.life.kept}
    assert {uid for uid, its in own.items() if Claim.PLANNED in its} == planned | kept
    assert all(gang.life.until < math.inf for gang in one.leadership.gangs if gang.phase is Phase.PLANNED)


async def own_words(one: Led) -> None:
    for gang, least in (("a", "2"), ("b", "3")):
        for number in range(2):
            await put_member(one, f"{gang}{number}", gang, least, age=number)


async def own_words_change(one: Led) -> None:
    await annotate(one, "a1", **{GANG: "b", GANG_MIN: "3"})


async def koordinator_without_object(one: Led) -> None:
    for name in ("a0", "a1"):
        await one.put_pod(name, annotations={f"{PREFIX}name": "a", f"{PREFIX}min-available": "2"})


async def its_groups_change(one: Led) -> None:
    await annotate(one, "a1", **{f"{PREFIX}groups": GROUP_OF_TWO})


async def pod_group(one: Led) -> None:
    await put_pod_group(one, "a", 2)
    await one.pause(ABSENT_S)
    for name in ("a0", "a1"):
        await one.put_pod(name, labels={LABEL: "a"})


async def it_says_another_gang(one: Led) -> None:
    await put_pod_group(one, "a", 2, groups=GROUP_OF_TWO)


async def it_says_more_members(one: Led) -> None:
    await put_pod_group(one, "a", 3)


async def it_is_removed(one: Led) -> None:
    await one.server.remove(f"{POD_GROUPS}a")
    await one.pause()


async def a_member_is_being_deleted(one: Led) -> None:
    """Delete a member whose finalizer, set by its Job, keeps it for a while."""
    pod = one.json("a1")
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    await one.server.put(pod_path("a1"), pod)
    await one.pause()


async def a_member_says_another_minimum(one: Led) -> None:
    await annotate(one, "a1", **{GANG_MIN: "1"})


@pytest.mark.parametrize(
    ("begin", "change"),
    [
        (own_words, own_words_change),
        (koordinator_without_object, its_groups_change),
        (pod_group, it_says_another_gang),
        (pod_group, it_says_more_members),
        (pod_group, it_is_removed),
        (own_words, a_member_is_being_deleted),
        (own_words, a_member_says_another_minimum),
    ],
)
def test_a_plan_ends_with_a_member_that_it_needs(tmp_path: Path, begin: Change, change: Change) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"a0", "a1", "b0", "b1"})
        await begin(one)
        await scheduler.run(1)
        assert claims(one) == 2
        await change(one)
        held = [uid for uid, own in one.leadership.ledger.snapshot().own.items() if Claim.PLANNED in own]
        assert (held, [gang.phase for gang in one.leadership.gangs if gang.plan]) == ([], [])
        await scheduler.run(2)
        check_plans(one)
        await scheduler.run(PLAN_S + 10)
        check_plans(one)
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_changes_its_gang_gets_its_place_there_with_the_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"a0", "a1"})
        await own_words(one)
        await scheduler.run(1)
        scheduler.ignores.clear()
        await own_words_change(one)
        scheduler.ask("a1")
        await scheduler.run(5)
        assert bound(one) == ["a1", "b0", "b1"]
        await scheduler.end()

    play(story, tmp_path)


def test_no_member_is_bound_alone_when_the_object_with_the_minimum_is_removed(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await pod_group(one)
        scheduler.ignores.add("a1")
        await scheduler.run(1)
        await it_is_removed(one)
        await annotate(one, "a0", note="touched")
        await scheduler.run(10)
        assert bound(one) == []
        scheduler.ignores.clear()
        await put_pod_group(one, "a", 2)
        scheduler.ask("a1")
        await scheduler.run(10)
        assert bound(one) == ["a0", "a1"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_whose_last_member_goes_before_it_is_bound_blocks_no_other_gang_on_its_node(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.add("a0")
        await put_gang(one, "a", 1)
        await scheduler.run(1)
        assert scheduler.ask("a0") == "n1"
        await one.remove_pod("a0")
        await put_gang(one, "b", 2)
        await scheduler.run(5)
        assert bound(one) == ["b0", "b1"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_whose_plan_ended_on_its_way_to_be_bound_is_not_bound_alone(tmp_path: Path) -> None:
    """Let the barrier release the member, and delete another member before the Binding is sent."""

    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"a0", "a1"})
        names = await put_gang(one, "a", 2)
        await scheduler.run(1)
        assert {scheduler.ask(name) for name in names} == {"n1"}
        keeper = one.leadership._gang_keeper
        assert [keeper.enter(one.uid(name), "n1") == "" for name in names] == [False, True]
        a0 = one.uid("a0")
        await one.remove_pod("a1")
        reserved = one.leadership.scheduler.reserve(a0, "n1")
        assert "gang-incomplete" in str(reserved)
        assert claims(one) == 0
        assert scheduler.ask("a0") == REFUSED
        await scheduler.end()

    play(story, tmp_path)
