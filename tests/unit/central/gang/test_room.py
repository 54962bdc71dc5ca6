"""Test free capacity for a waiting gang, reserved as pods end or made by evictions, and gangs that other pods may not
divide."""

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.controllers import make_room
from central.controllers.events import EventReason
from central.controllers.gangs import BARRIER_S
from central.decide.gang_room import Made, evicting
from central.decide.gangs import GangPlanner
from central.decide.reservation import OBSERVED_S
from central.decide.victims import Protection
from central.gang.gang import Gang
from central.request.gang import Terms
from lading.vocabulary import GANG, GANG_MIN, GANG_REQUIRED_TOPOLOGY, RESOURCE_GPU, PodUid
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, play
from tests.unit.central.gang.stories import bound, claims, created, end_evicted, nodes_of, put_gang, put_member, reasons

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


async def singles(one: Led, scheduler: KubeScheduler, node: str, count: int, **options: Any) -> list[str]:
    names = [f"{node}-single{number}" for number in range(count)]
    for name in names:
        await one.put_pod(name, **options)
        one.filter(name, node)
        assert await one.bind(name, node) == ""
    await one.pause()
    return names


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
def test_a_stream_of_small_pods_holds_a_gang_up_no_longer_than_its_patience(tmp_path: Path, patience_s: float) -> None:
    """Create a small pod every 5 s, each of which runs for 60 s: more than the eight cards can hold."""

    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        names: list[str] = []
        small = SmallPods(one, 60)
        waited = 0
        for round_number in range(40):
            now = 5.0 * round_number
            await small.come(round_number, now)
            if round_number == 10:
                names = await put_gang(one, "big", 8, age=round_number)
                await put_gang(one, "later", 8, age=round_number + 1)
            await scheduler.run(5)
            small.begin(now)
            if names:
                waited += 5
                assert len({name[:3] for name in map(holder_of, one.leadership.ledger.nominations())}) <= 1
                if set(names) <= set(bound(one)):
                    break
        assert (set(names) <= set(bound(one))) == bool(patience_s)
        assert not patience_s or waited <= PATIENCE_S + 60 + 10
        await scheduler.end()

    def holder_of(claim: Any) -> str:
        return str(claim.holder.name)

    play(story, tmp_path, patience_s=patience_s)


@pytest.mark.parametrize("required", [False, True], ids=["anywhere", "within one rack"])
def test_room_is_not_kept_for_ever_where_no_pod_ends(tmp_path: Path, required: bool) -> None:
    """Let n1 have one free card of four and no pod that ends; on n2 each pod runs for 40 s, and the next one takes its card."""

    async def story(one: Led) -> None:
        for node, rack in [("n1", "a"), ("n2", "b")]:
            await one.put_node(node, 4, labels={RACK: rack})
        scheduler = KubeScheduler(one)
        await singles(one, scheduler, "n1", 3)
        small = SmallPods(one, 40)
        names: list[str] = []
        for round_number in range(100):
            now = 10.0 * round_number
            await small.come(round_number, now)
            if round_number == 10:
                names = await put_gang(one, "big", 4, age=round_number, says={GANG_REQUIRED_TOPOLOGY: RACK} if required else {})
            await scheduler.run(10)
            small.begin(now)
            if names and set(names) <= set(bound(one)):
                break
        on = Counter(nodes_of(one, *names))
        assert on["n2"] >= (4 if required else 3)  # the one card of n1 may be free too when n2 has three
        assert on.total() == 4
        await scheduler.end()

    play(story, tmp_path, patience_s=3.0)


@pytest.mark.parametrize("requested", [False, True], ids=["about no node", "about another node"])
def test_room_is_kept_for_a_gang_where_other_pods_hold_the_cpu(tmp_path: Path, requested: bool) -> None:
    """Check n1, which kube-scheduler does not name before its pod ends, while n2 is too small."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 4, allocatable={"cpu": "8", "memory": "64Gi"})
        await one.put_node("n2", 1, allocatable={"cpu": "64", "memory": "64Gi"})
        others = ["n2"] if requested else []

        def possible(name: str) -> list[str]:
            return ["n1", *others] if not name.startswith("g") or hog not in bound(one) else others

        scheduler = KubeScheduler(one, possible=possible)
        (hog,) = await singles(one, scheduler, "n1", 1, requests={"cpu": "6"})
        names = await put_gang(one, "g", 2, requests={"cpu": "3"}, unschedulable=not requested)
        await scheduler.run(PATIENCE_S + 5)
        assert {claim.node for claim in one.leadership.ledger.nominations()} == {"n1"}
        await one.put_pod("late", {RESOURCE_GPU: "3"})
        await scheduler.run(2)
        assert bound(one) == [hog]  # one of the three free cards is kept, and the one of the pod
        await one.remove_pod(hog)
        await scheduler.run(10)
        assert set(nodes_of(one, *names)) == {"n1"}
        await scheduler.end()

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_node_that_kube_scheduler_does_not_name_once_it_has_room_is_left(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name in ("n1", "n2"):
            await one.put_node(name, 4, allocatable={"cpu": "8", "memory": "64Gi"})

        def possible(name: str) -> list[str]:
            return ["n2"] if second not in bound(one) else []

        scheduler = KubeScheduler(one, possible=possible)
        first, second = [(await singles(one, scheduler, node, 1, requests={"cpu": "6"}))[0] for node in ("n1", "n2")]
        names = await put_gang(one, "g", 2, requests={"cpu": "3"}, unschedulable=True)
        await scheduler.run(PATIENCE_S + 5)
        assert {claim.node for claim in one.leadership.ledger.nominations()} == {"n1"}
        await one.remove_pod(first)
        await scheduler.run(2 * OBSERVED_S)
        assert {claim.node for claim in one.leadership.ledger.nominations()} == {"n2"}
        await one.remove_pod(second)
        await scheduler.run(10)
        assert set(nodes_of(one, *names)) == {"n2"}
        await scheduler.end()

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_gang_that_fits_no_empty_cluster_keeps_no_room(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "big", 5)
        await scheduler.run(PATIENCE_S + 5)
        assert (one.leadership.ledger.nominations(), reasons(scheduler, "big0")) == ((), {"gang-too-large"})
        await one.put_pod("single")
        assert scheduler.ask("single") == "n1"
        await scheduler.end()

    play(story, tmp_path, patience_s=PATIENCE_S)


async def gang_and_singles(one: Led, scheduler: KubeScheduler, *, third: bool) -> None:
    """Fill n1 with a gang of eight members, and n2 and n3 with eight pods each."""
    await one.report("n1", 8)
    await put_gang(one, "low", 8)
    await scheduler.run(3)
    assert len(bound(one)) == 8
    for node in ["n2", "n3"] if third else ["n2"]:
        await one.put_node(node, 8)
        await singles(one, scheduler, node, 8)


def test_pods_alone_are_evicted_before_a_gang(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await gang_and_singles(one, scheduler, third=True)
        await put_gang(one, "high", 2, gpus=8, priority=100)
        await scheduler.run(3)
        deleted = await end_evicted(one)
        assert (len(deleted), {name[:2] for name in deleted}) == (16, {"n2", "n3"})
        await scheduler.run(3)
        assert sorted(nodes_of(one, "high0", "high1")) == ["n2", "n3"]
        assert len([name for name in bound(one) if name.startswith("low")]) == 8
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_is_evicted_as_a_whole_if_nothing_else_will_do(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await gang_and_singles(one, scheduler, third=False)
        await put_gang(one, "high", 2, gpus=8, priority=100)
        await scheduler.run(3)
        assert len(await end_evicted(one)) == 16
        await scheduler.run(3)
        assert sorted(bound(one)) == ["high0", "high1"]
        await scheduler.end()

    play(story, tmp_path)


def test_no_pod_is_evicted_for_a_gang_that_would_not_fit_then(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await gang_and_singles(one, scheduler, third=False)
        await singles(one, scheduler, "n2", 0)
        await put_gang(one, "high", 3, gpus=8, priority=100)
        await scheduler.run(5)
        assert await end_evicted(one) == []
        assert one.leadership.ledger.nominations() == ()
        await scheduler.end()

    play(story, tmp_path)


def test_a_budget_protects_pods_from_a_gang(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await one.put_budget("careful", {"app": "careful"})
        await singles(one, scheduler, "n1", 2, labels={"app": "careful"})
        await put_gang(one, "high", 2, priority=100)
        await scheduler.run(5)
        assert await end_evicted(one) == []
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_alone_takes_members_beyond_the_minimum_of_a_gang_first_and_then_all_of_it(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "low", 4, least=2)
        await scheduler.run(5)
        assert len(bound(one)) == 4
        for number in range(3):
            await one.put_pod(f"high{number}", priority=100)
            await scheduler.run(3)
            await end_evicted(one)
            await scheduler.run(3)
            assert len(bound(one)) == (4 if number < 2 else 3)
        assert bound(one) == ["high0", "high1", "high2"]
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("waits", ["a pod alone", "a gang of one"])
@pytest.mark.parametrize("cards", [1, 4])
def test_a_whole_gang_of_lower_priority_goes_for_a_pod_and_for_a_gang_of_one(tmp_path: Path, waits: str, cards: int) -> None:
    """Check that the gang's member on another node is evicted too."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 4)
        await one.put_node("n2", 1)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "low", 5)
        await scheduler.run(3)
        assert bound(one) == names
        says = {GANG: "high", GANG_MIN: "1"} if waits == "a gang of one" else {}
        await one.put_pod("high", {RESOURCE_GPU: str(cards)}, priority=1000, annotations=says)
        await scheduler.run(3)
        assert await end_evicted(one) == names
        await scheduler.run(3)
        assert bound(one) == ["high"]
        await scheduler.end()

    play(story, tmp_path)


def test_pods_alone_go_before_a_gang_for_a_pod_alone_too(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await gang_and_singles(one, scheduler, third=False)
        await one.put_pod("high", {RESOURCE_GPU: "8"}, priority=100)
        await scheduler.run(3)
        assert {name[:2] for name in await end_evicted(one)} == {"n2"}
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("protects", ["a budget", "priority"])
@pytest.mark.parametrize("waits", ["a pod alone", "a gang of one"])
def test_one_member_that_cannot_go_protects_its_gang_and_why_says_so(tmp_path: Path, waits: str, protects: str) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await one.put_budget("careful", {"app": "careful"}, allowed=3)
        for number in range(4):
            labels = {"app": "careful"} if protects == "a budget" else {}
            priority = 5000 if protects == "priority" and number == 3 else 0
            await put_member(one, f"low{number}", "low", "4", labels=labels, priority=priority)
        await scheduler.run(3)
        assert len(bound(one)) == 4
        says = {GANG: "high", GANG_MIN: "1"} if waits == "a gang of one" else {}
        await one.put_pod("high", {RESOURCE_GPU: "2"}, priority=1000, annotations=says)
        await scheduler.run(5)
        assert await end_evicted(one) == []
        text = msgspec.json.decode(await one.leadership.why("default", "high") or b"{}")["protected"]
        if protects == "a budget":
            assert text == {
                "gang default/low goes only as a whole: PodDisruptionBudget careful lets no more of its pods go now": 4
            }
        else:
            assert text == {"gang default/low goes only as a whole, and of default/low3: its priority is 5000": 3}
        await scheduler.end()

    play(story, tmp_path)


def test_members_that_wait_hold_nothing_while_their_victims_cannot_go(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await singles(one, scheduler, "n1", 2)
        one.server.evictable = False
        await put_gang(one, "high", 2, priority=100)
        await scheduler.run(BARRIER_S)
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


def test_preemption_by_a_gang_is_counted_as_such(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await singles(one, scheduler, "n1", 2)
        await put_member(one, "high", "high", "1", gpus=2, priority=100)
        await scheduler.run(3)
        assert {reason for reason, _ in one.leadership.scheduler.counts.evicted} == {EventReason.PREEMPTED}
        await scheduler.end()

    play(story, tmp_path)


def test_nothing_is_evicted_for_a_gang_whose_members_changed_during_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a bound pod join the gang with another minimum. As the oldest pod it decides, and no other pod is a member any
    more."""

    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await one.put_pod("low", {RESOURCE_GPU: "2"})
        await scheduler.run(1)

        def joined(planner: GangPlanner, gang: Gang, protection: Protection) -> Generator[None, None, Made | None]:
            made = yield from evicting(planner, gang, protection)
            (member, *_) = gang.members.values()
            terms = replace(member.membership.terms or Terms(), least={"": 3})
            says = replace(member.membership, terms=terms)
            oldest = replace(member, uid=PodUid("oldest"), name="oldest", created="2001-01-01T00:00:00Z", node="n1")
            one.leadership.scheduler.gangs.put(replace(oldest, membership=says))
            return made

        monkeypatch.setattr(make_room, "evicting", joined)
        await put_gang(one, "high", 2, priority=10)
        await scheduler.run(5)
        assert one.leadership.scheduler.gangs.of(PodUid("oldest")) is not None
        assert await end_evicted(one) == []
        await scheduler.end()

    play(story, tmp_path)
