"""Test free capacity for a waiting gang, reserved as pods end or made by evictions, and gangs that other pods may not
divide."""

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from central.controllers import make_room
from central.controllers.event_reasons import EventReason
from central.controllers.gangs import BARRIER_S
from central.decide.gang_room import Made, evicting
from central.decide.gangs import GangPlanner
from central.decide.reservation import OBSERVED_S
from central.decide.victims import Protection
from central.gang.gang import Gang
from central.request.gang import Terms
from lading.vocabulary import GANG, GANG_MIN, GANG_REQUIRED_TOPOLOGY, RESOURCE_GPU, PodUid
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led
from tests.unit.central.gang.members import bound, claims, created, end_evicted, nodes_of, put_gang, put_member, reasons

PATIENCE_S = 60.0
RACK = "topology.kubernetes.io/rack"


class SmallPods:
    """Create small pods one after the other, each with this run time."""

    def __init__(self, one: Led, runs_s: float) -> None:
        self._one = one
        self._runs_s = runs_s
        self._ends: dict[str, float] = {}

    async def come(self, number: int, now: float) -> None:
        """End those whose time is over, and create one more."""
        for name in [name for name, end in self._ends.items() if end <= now]:
            await self._one.remove_pod(name)
            del self._ends[name]
        await self._one.put_pod(f"small{number}", created=created(number))

    def begin(self, now: float) -> None:
        """Let the time of those begin that are bound now."""
        for name in bound(self._one):
            if name.startswith("small"):
                self._ends.setdefault(name, now + self._runs_s)


async def singles(cluster: Led, scheduler: KubeScheduler, node: str, count: int, **options: Any) -> list[str]:
    names = [f"{node}-single{number}" for number in range(count)]
    for name in names:
        await cluster.place(name, **options, on=node)
    await cluster.pause()
    return names


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
async def test_a_stream_of_small_pods_delays_a_gang_no_longer_than_its_patience(
    cluster: Led, scheduler: KubeScheduler, patience_s: float
) -> None:
    """Create a small pod every 5 s, each of which runs for 60 s: more than the eight cards can hold."""
    cluster.patience_s = patience_s
    await cluster.lead_again()
    await cluster.report("n1", 8)
    names: list[str] = []
    small = SmallPods(cluster, 60)
    waited = 0
    for round_number in range(40):
        now = 5.0 * round_number
        await small.come(round_number, now)
        if round_number == 10:
            names = await put_gang(cluster, "big", 8, age=round_number)
            await put_gang(cluster, "later", 8, age=round_number + 1)
        await scheduler.run(5)
        small.begin(now)
        if names:
            waited += 5
            assert len({str(claim.holder.name)[:3] for claim in cluster.leadership.ledger.nominations()}) <= 1
            if set(names) <= set(bound(cluster)):
                break
    assert (set(names) <= set(bound(cluster))) == bool(patience_s)
    assert not patience_s or waited <= PATIENCE_S + 60 + 10


@pytest.mark.parametrize("required", [False, True], ids=["anywhere", "within one rack"])
@pytest.mark.central(patience_s=3.0)
async def test_room_is_not_kept_for_ever_where_no_pod_ends(cluster: Led, scheduler: KubeScheduler, required: bool) -> None:
    """Let n1 have one free card of four and no pod that ends; on n2 each pod runs for 40 s, and the next one takes its card."""
    for node, rack in [("n1", "a"), ("n2", "b")]:
        await cluster.put_node(node, 4, labels={RACK: rack})
    await singles(cluster, scheduler, "n1", 3)
    small = SmallPods(cluster, 40)
    names: list[str] = []
    for round_number in range(100):
        now = 10.0 * round_number
        await small.come(round_number, now)
        if round_number == 10:
            names = await put_gang(cluster, "big", 4, age=round_number, says={GANG_REQUIRED_TOPOLOGY: RACK} if required else {})
        await scheduler.run(10)
        small.begin(now)
        if names and set(names) <= set(bound(cluster)):
            break
    on = Counter(nodes_of(cluster, *names))
    assert on["n2"] >= (4 if required else 3)  # the one card of n1 may be free too when n2 has three
    assert on.total() == 4


@pytest.mark.parametrize("requested", [False, True], ids=["about no node", "about another node"])
@pytest.mark.central(patience_s=PATIENCE_S)
async def test_room_is_kept_for_a_gang_where_other_pods_hold_the_cpu(
    cluster: Led, scheduler: KubeScheduler, requested: bool
) -> None:
    """Check n1, which kube-scheduler does not name before its pod ends, while n2 is too small."""
    await cluster.put_node("n1", 4, allocatable={"cpu": "8", "memory": "64Gi"})
    await cluster.put_node("n2", 1, allocatable={"cpu": "64", "memory": "64Gi"})
    others = ["n2"] if requested else []

    def possible(name: str) -> list[str]:
        return ["n1", *others] if not name.startswith("g") or hog not in bound(cluster) else others

    scheduler.possible = possible
    (hog,) = await singles(cluster, scheduler, "n1", 1, requests={"cpu": "6"})
    names = await put_gang(cluster, "g", 2, requests={"cpu": "3"}, unschedulable=not requested)
    await scheduler.run(PATIENCE_S + 5)
    assert {claim.node for claim in cluster.leadership.ledger.nominations()} == {"n1"}
    await cluster.put_pod("late", {RESOURCE_GPU: "3"})
    await scheduler.run(2)
    assert bound(cluster) == [hog]  # one of the three free cards is kept, and the one of the pod
    await cluster.remove_pod(hog)
    await scheduler.run(10)
    assert set(nodes_of(cluster, *names)) == {"n1"}


@pytest.mark.central(patience_s=PATIENCE_S)
async def test_the_reservation_leaves_a_node_that_kube_scheduler_does_not_name_once_its_cpu_is_free(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    for name in ("n1", "n2"):
        await cluster.put_node(name, 4, allocatable={"cpu": "8", "memory": "64Gi"})

    def possible(name: str) -> list[str]:
        return ["n2"] if second not in bound(cluster) else []

    scheduler.possible = possible
    first, second = [(await singles(cluster, scheduler, node, 1, requests={"cpu": "6"}))[0] for node in ("n1", "n2")]
    names = await put_gang(cluster, "g", 2, requests={"cpu": "3"}, unschedulable=True)
    await scheduler.run(PATIENCE_S + 5)
    assert {claim.node for claim in cluster.leadership.ledger.nominations()} == {"n1"}
    await cluster.remove_pod(first)
    await scheduler.run(2 * OBSERVED_S)
    assert {claim.node for claim in cluster.leadership.ledger.nominations()} == {"n2"}
    await cluster.remove_pod(second)
    await scheduler.run(10)
    assert set(nodes_of(cluster, *names)) == {"n2"}


@pytest.mark.central(patience_s=PATIENCE_S)
async def test_a_gang_that_fits_no_empty_cluster_keeps_no_room(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "big", 5)
    await scheduler.run(PATIENCE_S + 5)
    assert (cluster.leadership.ledger.nominations(), reasons(scheduler, "big0")) == ((), {"gang-too-large"})
    await cluster.put_pod("single")
    assert scheduler.ask("single") == "n1"


async def gang_and_singles(cluster: Led, scheduler: KubeScheduler, *, third: bool) -> None:
    """Fill n1 with a gang of eight members, and n2 and n3 with eight pods each."""
    await cluster.report("n1", 8)
    await put_gang(cluster, "low", 8)
    await scheduler.run(3)
    assert len(bound(cluster)) == 8
    for node in ["n2", "n3"] if third else ["n2"]:
        await cluster.put_node(node, 8)
        await singles(cluster, scheduler, node, 8)


async def test_pods_without_a_gang_are_evicted_before_a_gang(cluster: Led, scheduler: KubeScheduler) -> None:
    await gang_and_singles(cluster, scheduler, third=True)
    await put_gang(cluster, "high", 2, gpus=8, priority=100)
    await scheduler.run(3)
    deleted = await end_evicted(cluster)
    assert (len(deleted), {name[:2] for name in deleted}) == (16, {"n2", "n3"})
    await scheduler.run(3)
    assert sorted(nodes_of(cluster, "high0", "high1")) == ["n2", "n3"]
    assert len([name for name in bound(cluster) if name.startswith("low")]) == 8


async def test_a_gang_is_evicted_as_a_whole_if_other_pods_are_not_enough(cluster: Led, scheduler: KubeScheduler) -> None:
    await gang_and_singles(cluster, scheduler, third=False)
    await put_gang(cluster, "high", 2, gpus=8, priority=100)
    await scheduler.run(3)
    assert len(await end_evicted(cluster)) == 16
    await scheduler.run(3)
    assert sorted(bound(cluster)) == ["high0", "high1"]


async def test_no_pod_is_evicted_for_a_gang_that_would_not_fit_then(cluster: Led, scheduler: KubeScheduler) -> None:
    await gang_and_singles(cluster, scheduler, third=False)
    await singles(cluster, scheduler, "n2", 0)
    await put_gang(cluster, "high", 3, gpus=8, priority=100)
    await scheduler.run(5)
    assert await end_evicted(cluster) == []
    assert cluster.leadership.ledger.nominations() == ()


async def test_a_budget_protects_pods_from_a_gang(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    await cluster.put_budget("careful", {"app": "careful"})
    await singles(cluster, scheduler, "n1", 2, labels={"app": "careful"})
    await put_gang(cluster, "high", 2, priority=100)
    await scheduler.run(5)
    assert await end_evicted(cluster) == []


async def test_members_beyond_the_minimum_are_evicted_first_and_then_the_whole_gang(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "low", 4, least=2)
    await scheduler.run(5)
    assert len(bound(cluster)) == 4
    for number in range(3):
        await cluster.put_pod(f"high{number}", priority=100)
        await scheduler.run(3)
        await end_evicted(cluster)
        await scheduler.run(3)
        assert len(bound(cluster)) == (4 if number < 2 else 3)
    assert bound(cluster) == ["high0", "high1", "high2"]


@pytest.mark.parametrize("waits", ["a pod alone", "a gang of one"])
@pytest.mark.parametrize("cards", [1, 4])
async def test_a_whole_gang_of_lower_priority_is_evicted_for_a_pod_and_for_a_gang_of_one(
    cluster: Led, scheduler: KubeScheduler, waits: str, cards: int
) -> None:
    """Check that the gang's member on another node is evicted too."""
    await cluster.put_node("n1", 4)
    await cluster.put_node("n2", 1)
    names = await put_gang(cluster, "low", 5)
    await scheduler.run(3)
    assert bound(cluster) == names
    says = {GANG: "high", GANG_MIN: "1"} if waits == "a gang of one" else {}
    await cluster.put_pod("high", {RESOURCE_GPU: str(cards)}, priority=1000, annotations=says)
    await scheduler.run(3)
    assert await end_evicted(cluster) == names
    await scheduler.run(3)
    assert bound(cluster) == ["high"]


async def test_pods_without_a_gang_are_evicted_before_a_gang_for_a_pod_without_a_gang(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await gang_and_singles(cluster, scheduler, third=False)
    await cluster.put_pod("high", {RESOURCE_GPU: "8"}, priority=100)
    await scheduler.run(3)
    assert {name[:2] for name in await end_evicted(cluster)} == {"n2"}


@pytest.mark.parametrize("protects", ["a budget", "priority"])
@pytest.mark.parametrize("waits", ["a pod alone", "a gang of one"])
async def test_a_member_that_cannot_be_evicted_protects_its_gang_and_the_reason_says_so(
    cluster: Led, scheduler: KubeScheduler, waits: str, protects: str
) -> None:
    await cluster.report("n1", 4)
    await cluster.put_budget("careful", {"app": "careful"}, allowed=3)
    for number in range(4):
        labels = {"app": "careful"} if protects == "a budget" else {}
        priority = 5000 if protects == "priority" and number == 3 else 0
        await put_member(cluster, f"low{number}", "low", "4", labels=labels, priority=priority)
    await scheduler.run(3)
    assert len(bound(cluster)) == 4
    says = {GANG: "high", GANG_MIN: "1"} if waits == "a gang of one" else {}
    await cluster.put_pod("high", {RESOURCE_GPU: "2"}, priority=1000, annotations=says)
    await scheduler.run(5)
    assert await end_evicted(cluster) == []
    text = msgspec.json.decode(await cluster.leadership.why("default", "high") or b"{}")["protected"]
    if protects == "a budget":
        assert text == {"gang default/low goes only as a whole: PodDisruptionBudget careful lets no more of its pods go now": 4}
    else:
        assert text == {"gang default/low goes only as a whole, and of default/low3: its priority is 5000": 3}


async def test_waiting_members_hold_nothing_while_their_victims_cannot_be_evicted(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 2)
    await singles(cluster, scheduler, "n1", 2)
    cluster.server.evictable = False
    await put_gang(cluster, "high", 2, priority=100)
    await scheduler.run(BARRIER_S)
    assert claims(cluster) == 0


async def test_evictions_for_a_gang_are_counted_as_preemptions(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    await singles(cluster, scheduler, "n1", 2)
    await put_member(cluster, "high", "high", "1", gpus=2, priority=100)
    await scheduler.run(3)
    assert {reason for reason, _ in cluster.leadership.scheduler.counts.evicted} == {EventReason.PREEMPTED}


async def test_nothing_is_evicted_for_a_gang_whose_members_changed_during_the_search(
    cluster: Led, scheduler: KubeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a bound pod join the gang with another minimum. As the oldest pod it decides, and no other pod is a member any
    more."""
    await cluster.report("n1", 2)
    await cluster.put_pod("low", {RESOURCE_GPU: "2"})
    await scheduler.run(1)

    def joined(planner: GangPlanner, gang: Gang, protection: Protection) -> Generator[None, None, Made | None]:
        made = yield from evicting(planner, gang, protection)
        (member, *_) = gang.members.values()
        terms = replace(member.membership.terms or Terms(), least={"": 3})
        says = replace(member.membership, terms=terms)
        oldest = replace(member, uid=PodUid("oldest"), name="oldest", created="2001-01-01T00:00:00Z", node="n1")
        cluster.leadership.scheduler.gangs.put(replace(oldest, membership=says))
        return made

    monkeypatch.setattr(make_room, "evicting", joined)
    await put_gang(cluster, "high", 2, priority=10)
    await scheduler.run(5)
    assert cluster.leadership.scheduler.gangs.of(PodUid("oldest")) is not None
    assert await end_evicted(cluster) == []
