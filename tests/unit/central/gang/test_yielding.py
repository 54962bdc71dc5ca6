"""Test what gangs hold before their minimum is bound: for seconds, a part of the cluster, and nothing that higher priority
needs."""

from fractions import Fraction

import pytest

from central.controllers.gangs import ARRIVED_S, KEPT_S, SINGLES_S
from lading.log import Event
from lading.vocabulary import RESOURCE_GANG_MEMBER, RESOURCE_GPU
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, rare_scans
from tests.unit.central.gang.members import bound, claims, end_evicted, put_gang, put_member, reasons

KOORDINATOR = "gang.scheduling.koordinator.sh/"
QUOTA = "quota.scheduling.koordinator.sh/name"


async def three_that_never_start(cluster: Led, scheduler: KubeScheduler) -> None:
    """Create eight nodes of eight cards, and three gangs that each need all of them. One member of each gang never reaches the
    Binding, because it waits for a volume that does not appear."""
    for number in range(1, 9):
        await cluster.put_node(f"n{number}", 8)
    for age, gang in enumerate("abc"):
        await put_gang(cluster, gang, 8, gpus=8, age=age)
        scheduler.ignores.add(f"{gang}7")


async def test_a_pod_of_higher_priority_is_placed_at_once_in_place_of_a_plan(cluster: Led, scheduler: KubeScheduler) -> None:
    await three_that_never_start(cluster, scheduler)
    await scheduler.run(3)
    assert (claims(cluster), bound(cluster)) == (8, [])
    await cluster.put_pod("urgent", priority=100_000)
    assert scheduler.ask("urgent") != REFUSED
    assert claims(cluster) == 1  # only the new pod's claim remains, because the plan ends as a whole
    await scheduler.run(1)
    assert bound(cluster) == ["urgent"]


@pytest.mark.parametrize("after_s", [0, 200])
@pytest.mark.long
async def test_a_pod_of_the_same_priority_is_placed_between_two_plans(
    cluster: Led, scheduler: KubeScheduler, after_s: int
) -> None:
    await three_that_never_start(cluster, scheduler)
    with rare_scans():
        await scheduler.run(3 + after_s)
    for number in range(3):
        await cluster.put_pod(f"single{number}")
        await scheduler.run(ARRIVED_S + SINGLES_S + 3)
        assert len(bound(cluster)) == number + 1


async def test_a_gang_of_higher_priority_takes_the_place_of_a_plan(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    names = await put_gang(cluster, "low", 8)
    scheduler.ignores.update(names)
    await scheduler.run(2)
    assert claims(cluster) == 8
    high = await put_gang(cluster, "high", 4, priority=10)
    await scheduler.run(2)
    assert bound(cluster) == high
    assert claims(cluster) == 0


async def test_a_pod_of_the_same_priority_does_not_take_the_place_of_a_plan(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    scheduler.ignores.update(await put_gang(cluster, "g", 2, priority=5))
    await scheduler.run(1)
    await cluster.put_pod("single", priority=5)
    assert scheduler.ask("single") == REFUSED
    assert claims(cluster) == 2


async def test_a_pod_ends_the_plan_of_lowest_priority_and_no_other(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    for priority, gang in enumerate(("low", "middle")):
        scheduler.ignores.update(await put_gang(cluster, gang, 2, priority=priority))
    await scheduler.run(1)
    assert claims(cluster) == 4
    await cluster.put_pod("high", priority=9)
    assert scheduler.ask("high") == "n1"
    left = {gang.key.name for gang in cluster.leadership.gangs if gang.plan}
    assert left == {"middle"}


async def test_a_pod_of_higher_priority_takes_the_quota_of_a_plan(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    await cluster.put_quotas("a", least=2, most=2)
    scheduler.ignores.update(await put_gang(cluster, "g", 2, labels={QUOTA: "a"}))
    await scheduler.run(1)
    assert claims(cluster) == 2
    await cluster.put_pod("other", labels={QUOTA: "a"})
    assert scheduler.ask("other") == REFUSED
    await cluster.put_pod("high", labels={QUOTA: "a"}, priority=9)
    assert scheduler.ask("high") == "n1"


@pytest.mark.central(patience_s=10.0)
async def test_a_pod_of_higher_priority_takes_room_that_is_kept_for_a_gang_that_waits_for_long(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    await cluster.put_pod("runs")
    await scheduler.run(1)
    await put_gang(cluster, "big", 4, age=9)
    await scheduler.run(15)
    assert len(cluster.leadership.ledger.nominations()) == 4
    await cluster.put_pod("single")
    assert scheduler.ask("single") == REFUSED
    await cluster.put_pod("high", priority=9)
    assert scheduler.ask("high") == "n1"


async def test_pods_are_evicted_beside_a_plan_that_is_dropped(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    await cluster.put_pod("runs")
    await scheduler.run(1)
    scheduler.ignores.update(await put_gang(cluster, "g", 3))
    await scheduler.run(1)
    assert claims(cluster) == 3
    await cluster.put_pod("high", {RESOURCE_GPU: "4"}, priority=9)
    await scheduler.run(2)
    assert await end_evicted(cluster) == ["runs"]
    await scheduler.run(3)
    assert bound(cluster) == ["high"]


async def test_a_plan_is_dropped_within_seconds_if_a_member_is_not_sent_to_bind(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "g", 4)
    scheduler.ignores.add("g3")
    await scheduler.run(2)
    assert claims(cluster) == 4
    await scheduler.run(ARRIVED_S)
    assert claims(cluster) == 0


@pytest.mark.parametrize("how", ["is not sent to bind", "is replaced", "cannot be on its node"])
async def test_a_gang_that_fails_to_start_waits_longer_each_time(cluster: Led, scheduler: KubeScheduler, how: str) -> None:
    """Check that the pause after each plan doubles, until a start ends that."""
    for node in ("n1", "n2"):
        await cluster.put_node(node, 4)
    requested = 0

    def possible(name: str) -> list[str]:
        nonlocal requested
        requested += name == "g3"
        return [["n1"], ["n2"]][requested % 2] if how.startswith("cannot") and name == "g3" else ["n1", "n2"]

    scheduler.possible = possible
    await put_gang(cluster, "g", 4)
    scheduler.ignores.add("g3")
    with rare_scans():
        for _ in range(100):
            await scheduler.run(6)
            if how == "is replaced":
                await cluster.remove_pod("g3")
                await put_member(cluster, "g3", "g", "4")
    assert 5 <= cluster.records.count(Event.GANG_PLANNED) <= 12
    if not how.startswith("cannot"):
        scheduler.ignores.clear()
        scheduler.ask("g3")
        await scheduler.run(300)
        assert len(bound(cluster)) == 4


@pytest.mark.central(plan_share=Fraction(1, 2))
async def test_plans_without_a_bound_member_hold_a_part_of_the_cluster(cluster: Led, scheduler: KubeScheduler) -> None:
    for node in ("n1", "n2", "n3", "n4"):
        await cluster.put_node(node, 4)
    for age in range(4):
        scheduler.ignores.update(await put_gang(cluster, f"g{age}x", 4, age=age))
    await scheduler.run(2)
    assert claims(cluster) == 8
    assert reasons(scheduler, "g3x0") == {"gang-waits-for-turn"}
    assert "75 % of all devices; 50 % are allowed (gang_plan_share)" in scheduler.refusals["g3x0"][0]
    await cluster.put_pod("single")
    assert scheduler.ask("single") != REFUSED


@pytest.mark.central(plan_share=Fraction(1, 2))
async def test_a_single_gang_may_be_larger_than_the_part_for_plans(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    names = await put_gang(cluster, "g", 8)
    await scheduler.run(2)
    assert bound(cluster) == names


@pytest.mark.central(plan_share=Fraction(1, 2))
async def test_members_beyond_the_minimum_are_planned_within_the_part_for_plans(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    scheduler.ignores.update(await put_gang(cluster, "g", 8, least=1))
    await scheduler.run(1)
    assert claims(cluster) == 4


# ---- after the first Binding


async def only_the_launcher(cluster: Led, scheduler: KubeScheduler) -> None:
    """Check a gang of nine whose member without devices is bound, while the eight others are deleted."""
    await cluster.report("n1", 8)
    says = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "9", f"{KOORDINATOR}waiting-time": "3600s"}
    await cluster.put_pod("launcher", {RESOURCE_GANG_MEMBER: "1"}, annotations=says, labels={QUOTA: "a"})
    for number in range(8):
        await cluster.put_pod(f"g{number}", annotations=says, labels={QUOTA: "a"})
    cluster.server.fail(Fault(status=409), when=lambda sent: is_binding(sent) and "launcher" not in sent.path, times=99)
    await scheduler.run(2)
    assert bound(cluster) == ["launcher"]
    cluster.server.heal()
    for number in range(8):
        await cluster.remove_pod(f"g{number}")
    await cluster.pause(1)


async def test_devices_of_deleted_members_are_kept_for_seconds_whatever_the_pod_requests(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await only_the_launcher(cluster, scheduler)
    await cluster.put_pod("single")
    assert scheduler.ask("single") == REFUSED
    await scheduler.run(KEPT_S + 2)
    assert "single" in bound(cluster)
    assert cluster.free_cards() == 7


@pytest.mark.central(finish_s=5.0)
async def test_the_setting_finish_s_bounds_the_time_of_a_gang(cluster: Led, scheduler: KubeScheduler) -> None:
    await only_the_launcher(cluster, scheduler)
    await scheduler.run(5)
    assert cluster.free_cards() == 8
    await scheduler.run(2)
    assert cluster.leadership.scheduler.counts.evicted  # the launcher: its gang is strict


async def test_devices_of_deleted_members_are_taken_by_higher_priority(cluster: Led, scheduler: KubeScheduler) -> None:
    await only_the_launcher(cluster, scheduler)
    await cluster.put_pod("high", {RESOURCE_GPU: "2"}, priority=1000)
    assert scheduler.ask("high") == "n1"
    assert cluster.free_cards() == 0  # two are its own, and six are still kept


async def test_devices_of_deleted_members_count_in_their_quota_until_they_are_replaced(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.put_node("n2", 8)
    await cluster.put_quotas("a", least=8, most=8)
    await only_the_launcher(cluster, scheduler)
    await cluster.put_pod("single", labels={QUOTA: "a"})
    assert scheduler.ask("single") == REFUSED
    assert reasons(scheduler, "single") == {"quota-exceeded"}
    await cluster.remove_pod("single")
    says = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "9", f"{KOORDINATOR}waiting-time": "3600s"}
    for number in range(8):
        await cluster.put_pod(f"again{number}", annotations=says, labels={QUOTA: "a"})
    await scheduler.run(5)
    assert len(bound(cluster)) == 9


async def test_a_member_that_is_not_sent_to_bind_after_the_first_binding_holds_its_devices_for_seconds(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    scheduler.ignores.update({"g1", "g2", "g3"})
    await put_gang(cluster, "g", 4, least=1, says={})
    await scheduler.run(2)
    assert bound(cluster) == ["g0"]
    await scheduler.run(ARRIVED_S + 1)
    assert len([claim for claim in cluster.leadership.ledger.snapshot().own.values() if "planned" in claim]) == 0
