"""Test what gangs hold before their minimum is bound: for seconds, a part of the cluster, and nothing that higher priority
needs."""

from fractions import Fraction
from pathlib import Path

import pytest

from central.controllers.gangs import ARRIVED_S, KEPT_S, SINGLES_S
from lading.log import Event
from lading.vocabulary import RESOURCE_GANG_MEMBER, RESOURCE_GPU
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, play, rare_looks
from tests.unit.central.gang.stories import bound, claims, end_evicted, put_gang, put_member, reasons

KOORDINATOR = "gang.scheduling.koordinator.sh/"
QUOTA = "quota.scheduling.koordinator.sh/name"


async def three_that_never_start(one: Led, scheduler: KubeScheduler) -> None:
    """Create eight nodes of eight cards, and three gangs that each need all of them. One member of each gang never reaches the
    Binding, because it waits for a volume that does not appear."""
    for number in range(1, 9):
        await one.put_node(f"n{number}", 8)
    for age, gang in enumerate("abc"):
        await put_gang(one, gang, 8, gpus=8, age=age)
        scheduler.ignores.add(f"{gang}7")


def test_a_pod_of_higher_priority_is_placed_at_once_in_place_of_a_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await three_that_never_start(one, scheduler)
        await scheduler.run(3)
        assert (claims(one), bound(one)) == (8, [])
        await one.put_pod("urgent", priority=100_000)
        assert scheduler.ask("urgent") != REFUSED
        assert claims(one) == 1  # only the new pod's claim remains, because the plan ends as a whole
        await scheduler.run(1)
        assert bound(one) == ["urgent"]
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("after_s", [0, 200])
@pytest.mark.long
def test_a_pod_of_the_same_priority_has_its_question_between_two_plans(tmp_path: Path, after_s: int) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await three_that_never_start(one, scheduler)
        with rare_looks():
            await scheduler.run(3 + after_s)
        for number in range(3):
            await one.put_pod(f"single{number}")
            await scheduler.run(ARRIVED_S + SINGLES_S + 3)
            assert len(bound(one)) == number + 1
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_of_higher_priority_takes_the_place_of_a_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "low", 8)
        scheduler.ignores.update(names)
        await scheduler.run(2)
        assert claims(one) == 8
        high = await put_gang(one, "high", 4, priority=10)
        await scheduler.run(2)
        assert bound(one) == high
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_of_the_same_priority_does_not_take_the_place_of_a_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update(await put_gang(one, "g", 2, priority=5))
        await scheduler.run(1)
        await one.put_pod("single", priority=5)
        assert scheduler.ask("single") == REFUSED
        assert claims(one) == 2
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_takes_no_more_than_it_needs_and_the_lowest_first(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        for priority, gang in enumerate(("low", "middle")):
            scheduler.ignores.update(await put_gang(one, gang, 2, priority=priority))
        await scheduler.run(1)
        assert claims(one) == 4
        await one.put_pod("high", priority=9)
        assert scheduler.ask("high") == "n1"
        left = {gang.key.name for gang in one.leadership.gangs if gang.plan}
        assert left == {"middle"}
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_of_higher_priority_takes_what_a_plan_has_of_its_quota(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        await one.put_quota("a", least=2, most=2)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update(await put_gang(one, "g", 2, labels={QUOTA: "a"}))
        await scheduler.run(1)
        assert claims(one) == 2
        await one.put_pod("other", labels={QUOTA: "a"})
        assert scheduler.ask("other") == REFUSED
        await one.put_pod("high", labels={QUOTA: "a"}, priority=9)
        assert scheduler.ask("high") == "n1"
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_of_higher_priority_takes_room_that_is_kept_for_a_gang_that_waits_for_long(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        await put_gang(one, "big", 4, age=9)
        await scheduler.run(15)
        assert len(one.leadership.ledger.nominations()) == 4
        await one.put_pod("single")
        assert scheduler.ask("single") == REFUSED
        await one.put_pod("high", priority=9)
        assert scheduler.ask("high") == "n1"
        await scheduler.end()

    play(story, tmp_path, patience_s=10.0)


def test_pods_are_evicted_beside_a_plan_that_is_dropped(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await one.put_pod("runs")
        await scheduler.run(1)
        scheduler.ignores.update(await put_gang(one, "g", 3))
        await scheduler.run(1)
        assert claims(one) == 3
        await one.put_pod("high", {RESOURCE_GPU: "4"}, priority=9)
        await scheduler.run(2)
        assert await end_evicted(one) == ["runs"]
        await scheduler.run(3)
        assert bound(one) == ["high"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_plan_of_which_a_named_member_does_not_arrive_is_dropped_within_seconds(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 4)
        scheduler.ignores.add("g3")
        await scheduler.run(2)
        assert claims(one) == 4
        await scheduler.run(ARRIVED_S)
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("how", ["is not sent to bind", "is replaced", "cannot be on its node"])
def test_a_gang_that_fails_to_start_waits_longer_each_time(tmp_path: Path, how: str) -> None:
    """Check that the pause after each plan doubles, until a start ends that."""

    async def story(one: Led) -> None:
        for node in ("n1", "n2"):
            await one.put_node(node, 4)
        requested = 0

        def possible(name: str) -> list[str]:
            nonlocal requested
            requested += name == "g3"
            return [["n1"], ["n2"]][requested % 2] if how.startswith("cannot") and name == "g3" else ["n1", "n2"]

        scheduler = KubeScheduler(one, possible=possible)
        await put_gang(one, "g", 4)
        scheduler.ignores.add("g3")
        with rare_looks():
            for _ in range(100):
                await scheduler.run(6)
                if how == "is replaced":
                    await one.remove_pod("g3")
                    await put_member(one, "g3", "g", "4")
        assert 5 <= one.records.count(Event.GANG_PLANNED) <= 12
        if not how.startswith("cannot"):
            scheduler.ignores.clear()
            scheduler.ask("g3")
            await scheduler.run(300)
            assert len(bound(one)) == 4
        await scheduler.end()

    play(story, tmp_path)


def test_plans_without_a_bound_member_hold_a_part_of_the_cluster(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for node in ("n1", "n2", "n3", "n4"):
            await one.put_node(node, 4)
        scheduler = KubeScheduler(one)
        for age in range(4):
            scheduler.ignores.update(await put_gang(one, f"g{age}x", 4, age=age))
        await scheduler.run(2)
        assert claims(one) == 8
        assert reasons(scheduler, "g3x0") == {"gang-waits-for-turn"}
        assert "75 % of all devices; 50 % are allowed (gang_plan_share)" in scheduler.refusals["g3x0"][0]
        await one.put_pod("single")
        assert scheduler.ask("single") != REFUSED
        await scheduler.end()

    play(story, tmp_path, plan_share=Fraction(1, 2))


def test_one_gang_may_be_larger_than_that_part(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 8)
        await scheduler.run(2)
        assert bound(one) == names
        await scheduler.end()

    play(story, tmp_path, plan_share=Fraction(1, 2))


def test_members_beyond_the_minimum_are_planned_within_that_part(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update(await put_gang(one, "g", 8, least=1))
        await scheduler.run(1)
        assert claims(one) == 4
        await scheduler.end()

    play(story, tmp_path, plan_share=Fraction(1, 2))


# ---- after the first Binding


async def only_the_launcher(one: Led, scheduler: KubeScheduler) -> None:
    """Check a gang of nine whose member without devices is bound, while the eight others are deleted."""
    await one.report("n1", 8)
    says = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "9", f"{KOORDINATOR}waiting-time": "3600s"}
    await one.put_pod("launcher", {RESOURCE_GANG_MEMBER: "1"}, annotations=says, labels={QUOTA: "a"})
    for number in range(8):
        await one.put_pod(f"g{number}", annotations=says, labels={QUOTA: "a"})
    one.server.fail(Fault(status=409), when=lambda sent: is_binding(sent) and "launcher" not in sent.path, times=99)
    await scheduler.run(2)
    assert bound(one) == ["launcher"]
    one.server.heal()
    for number in range(8):
        await one.remove_pod(f"g{number}")
    await one.pause(1)


def test_room_of_members_that_are_deleted_is_kept_for_seconds_whatever_the_pod_says(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await only_the_launcher(one, scheduler)
        await one.put_pod("single")
        assert scheduler.ask("single") == REFUSED
        await scheduler.run(KEPT_S + 2)
        assert "single" in bound(one)
        assert one.free_cards() == 7
        await scheduler.end()

    play(story, tmp_path)


def test_the_operator_bounds_how_long_a_gang_is_waited_for(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await only_the_launcher(one, scheduler)
        await scheduler.run(5)
        assert one.free_cards() == 8
        await scheduler.run(2)
        assert one.leadership.scheduler.counts.evicted  # the launcher: its gang is strict
        await scheduler.end()

    play(story, tmp_path, finish_s=5.0)


def test_room_of_members_that_are_deleted_is_taken_by_higher_priority(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await only_the_launcher(one, scheduler)
        await one.put_pod("high", {RESOURCE_GPU: "2"}, priority=1000)
        assert scheduler.ask("high") == "n1"
        assert one.free_cards() == 0  # two are its own, and six are still kept
        await scheduler.end()

    play(story, tmp_path)


def test_room_of_members_that_are_deleted_counts_in_their_quota_and_not_beside_who_replaces_them(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2", 8)
        await one.put_quota("a", least=8, most=8)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        await only_the_launcher(one, scheduler)
        await one.put_pod("single", labels={QUOTA: "a"})
        assert scheduler.ask("single") == REFUSED
        assert reasons(scheduler, "single") == {"quota-exceeded"}
        await one.remove_pod("single")
        says = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "9", f"{KOORDINATOR}waiting-time": "3600s"}
        for number in range(8):
            await one.put_pod(f"again{number}", annotations=says, labels={QUOTA: "a"})
        await scheduler.run(5)
        assert len(bound(one)) == 9
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_is_not_sent_to_bind_after_the_first_binding_holds_its_place_for_seconds(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"g1", "g2", "g3"})
        await put_gang(one, "g", 4, least=1, says={})
        await scheduler.run(2)
        assert bound(one) == ["g0"]
        await scheduler.run(ARRIVED_S + 1)
        assert len([claim for claim in one.leadership.ledger.snapshot().own.values() if "planned" in claim]) == 0
        await scheduler.end()

    play(story, tmp_path)
