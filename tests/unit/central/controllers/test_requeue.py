"""Test which pods are requeued when devices become free: pods that may use these, a few at a time, none twice for the same
devices."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.assignment.model import Part, Taken
from central.controllers.requeue import AT_ONCE, CONDITION, FOR_EACH_NODE, JUDGED_S, SCAN_S, Requeuer, touch_pod
from central.decide.scheduler import PREDICTION_S, Reservation
from central.ledger.model import NodeCapacity
from central.loop.slices import SLICE_S
from central.request.model import DeviceRequest, Policy
from central.request.parse import parse_request
from central.request.pod import Pod
from central.search.filters import CardFilter, find_filters
from central.state.pending import Pending, pending_of
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import ConflictError, ForbiddenError, KubeError, NotFoundError, UnclearError
from lading.log import Event
from lading.vocabulary import GpuUuid
from tests.fakes.kube_objects import WHOLE, gpu_uuid, grant, pod, pod_path, share
from tests.fakes.kube_server import FakeKubeServer
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import World, uid_of


class Waking:
    """Create a cluster where `full` holds every card of n1, and a requeuer that has observed all of it."""

    def __init__(self, *, gpus: int = 1, nodes: Iterable[str] = ("n1",), policy: Policy = Policy.BINPACK) -> None:
        self.world = World(policy=policy)
        for name in nodes:
            self.world.node(name, gpus)
            self.world.bind(f"full-{name}", name, {"lading.dev/gpu": str(gpus)})
        self.waker = Requeuer(self.world.scheduler, self._touch, clock=lambda: self.world.now, log=self.world.records.log)
        self.touched: list[str] = []
        self.at: list[float] = []  # the touches' times
        self.fail: Callable[[str], KubeError | None] = lambda _: None
        self.scan()

    async def _touch(self, pod: Pending) -> None:
        self.touched.append(pod.name)
        self.at.append(asyncio.get_running_loop().time())
        if error := self.fail(pod.name):
            raise error

    def refuse(self, *names: str, limits: dict[str, str] = WHOLE, **options: Any) -> None:
        for name in names:
            self.world.show(name, limits, **options)
            assert not self.world.filter(name, "n1").fitting

    def scan(self) -> list[str]:
        return scan(self.waker)


def scan(waker: Requeuer) -> list[str]:
    return [pod.name for pod in run_simulated(waker.scan())]


def cards(*numbers: int) -> Taken:
    """Return these whole cards of n1."""
    return Taken(gpus={GpuUuid(gpu_uuid("n1", number)): Part(whole=True) for number in numbers})


def test_no_one_is_requeued_without_room() -> None:
    one = Waking()
    one.refuse("a")
    assert one.scan() == []
    one.world.report("n1", 1, grants=[grant("uid-x", "n1", 0)])
    one.world.deleted("full-n1")
    assert one.scan() == []


def test_a_release_wakes_who_fits_then() -> None:
    one = Waking()
    one.refuse("a")
    one.refuse("two-cards", limits={"lading.dev/gpu": "2"})
    one.world.deleted("full-n1")
    assert one.scan() == ["a"]
    assert one.scan() == []


@pytest.mark.parametrize("back", ["healthy", "uncordoned", "reconciled", "ready", "reported", "grant gone", "prediction over"])
def test_room_appears_in_many_ways(back: str) -> None:
    world = World()
    waker = Requeuer(world.scheduler, lambda _: asyncio.sleep(0), clock=lambda: world.now, log=world.records.log)
    by_cause: dict[str, dict[str, Any]] = {
        "healthy": {"unhealthy": "Xid 79"},
        "uncordoned": {"cordon": "all"},
        "reconciled": {"reconciled": False},
        "grant gone": {"grants": [grant("uid-x", "n1", 0)]},
    }
    text = by_cause.get(back, {})
    if back == "reported":
        world.readiness("n1", True)
    else:
        world.node("n1", 1, ready=back != "ready", **text)
    if back == "prediction over":
        world.show("other")
        world.filter("other")
    world.show("a")
    world.filter("a", "n1")
    assert world.is_refused("a")
    assert scan(waker) == []
    if back == "ready":
        world.readiness("n1", True)
    elif back == "prediction over":
        world.ledger.expire(PREDICTION_S)
    else:
        world.report("n1", 1)
    assert scan(waker) == ["a"]


def test_a_pod_that_cannot_use_the_room_is_not_requeued_in_a_loop() -> None:
    one = Waking()
    one.refuse("a")
    one.world.deleted("full-n1")
    assert one.scan() == ["a"]
    one.world.filter("a", "n7")  # there is room on n1, where it may not go
    assert [one.scan() for _ in range(20)] == [[]] * 20


def test_new_room_is_a_new_round() -> None:
    one = Waking(nodes=("n1", "n2"))
    one.refuse("a")
    one.world.deleted("full-n1")
    assert one.scan() == ["a"]
    one.world.deleted("full-n2")
    assert one.scan() == ["a"]


def test_room_that_does_not_fit_the_ask_begins_no_round() -> None:
    one = Waking(gpus=2, nodes=("n1", "n2"))
    one.world.deleted("full-n2")
    one.world.bind("half", "n2")
    one.world.bind("other-half", "n2")
    one.scan()
    one.refuse("a", "b", *(f"p{number:02}" for number in range(20)), limits={"lading.dev/gpu": "2"})
    one.world.deleted("full-n1")
    first = one.scan()
    one.world.deleted("half")
    second = one.scan()
    assert "a" in first
    assert not set(first) & set(second)


def test_a_round_ends_with_the_room() -> None:
    one = Waking()
    one.refuse(*(f"p{number:02}" for number in range(20)))
    one.world.deleted("full-n1")
    assert len(one.scan()) == FOR_EACH_NODE
    one.world.filter("p00")  # takes it
    assert one.scan() == []


def test_a_thousand_pods_and_one_card() -> None:
    one = Waking()
    one.refuse(*(f"p{number:04}" for number in range(1000)))
    one.world.deleted("full-n1")
    scans = [one.scan() for _ in range(1000 // FOR_EACH_NODE)]
    assert all(len(requeued) == FOR_EACH_NODE for requeued in scans)
    assert len({name for requeued in scans for name in requeued}) == 1000  # each had its turn
    assert one.scan() == []


@pytest.mark.long
def test_a_thousand_different_asks_and_one_card() -> None:
    one = Waking()
    for number in range(1000):
        one.refuse(f"p{number:04}", limits=share(f"{1000 + number}Mi"))
    one.world.deleted("full-n1")
    assert len(one.scan()) == FOR_EACH_NODE


def test_the_important_and_the_old_come_first_whatever_they_ask() -> None:
    one = Waking()
    for number in range(20):
        one.refuse(f"young{number:02}", created="2026-11-21T02:00:00Z")
    one.refuse("old", limits=share("1Gi"), created="2026-11-21T01:00:00Z")
    one.refuse("high", limits=share("2Gi"), priority=7, created="2026-11-21T03:00:00Z")
    one.world.deleted("full-n1")
    assert one.scan()[:3] == ["high", "old", "young00"]


def test_those_who_were_not_requeued_yet_get_half_of_the_places() -> None:
    one = Waking(nodes=("n1", "n2"))
    names = [f"p{number:02}" for number in range(3 * FOR_EACH_NODE)]
    one.refuse(*names)
    observed: set[str] = set()
    one.world.deleted("full-n1")
    for _ in range(6):  # each round begins before the former is through
        observed.update(one.scan())
        one.world.report("n1", 1, unhealthy="Xid 79")
        one.world.report("n1", 1)
    assert observed == set(names)


def test_room_that_was_made_for_a_pod_wakes_that_pod() -> None:
    one = Waking()
    one.refuse("high", priority=9)
    one.refuse("low")
    world = one.world
    world.ledger.claims.nominate(uid_of("high"), "n1", cards(0), 100.0)
    assert one.scan() == []
    world.deleted("full-n1")
    assert one.scan() == ["high"]
    assert one.scan() == []
    assert world.filter("low").fitting == []
    assert world.filter("high").fitting == ["n1"]


def test_a_nominated_pod_is_not_requeued_before_all_of_its_room_is_there() -> None:
    one = Waking(gpus=2)
    world = one.world
    world.deleted("full-n1")
    world.bind("x", "n1")
    world.bind("y", "n1")
    one.refuse("high", limits={"lading.dev/gpu": "2"}, priority=9)
    world.ledger.claims.nominate(uid_of("high"), "n1", cards(0, 1), 100.0)
    one.scan()
    world.deleted("x")
    assert one.scan() == []
    world.deleted("y")
    assert one.scan() == ["high"]


# Cost of a scan


def costing(one: Waking, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[tuple[DeviceRequest, str]]:
    """Let each judgement of a request on a node take this long from now on. Return the judged requests."""
    fits_on = one.world.scheduler.fits_on
    judged: list[tuple[DeviceRequest, str]] = []

    def judge(ask: DeviceRequest, node: str) -> bool:
        judged.append((ask, node))
        one.world.now += seconds
        return fits_on(ask, node)

    monkeypatch.setattr(one.world.scheduler, "fits_on", judge)
    return judged


def with_a_larger_node(nodes: Sequence[str]) -> Waking:
    """Add a node where pod a fits, while no other node has enough."""
    one = Waking(nodes=nodes)
    one.world.node("large", 2)
    one.world.bind("full-large", "large", {"lading.dev/gpu": "2"})
    one.scan()
    one.refuse("a", limits={"lading.dev/gpu": "2"})
    return one


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_for_more_asks_than_are_kept_only_what_got_room_is_judged(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("central.rank.verdicts.REMEMBERED", 4)
    one = Waking(nodes=(), policy=policy)
    for number in range(20):
        one.world.node(f"n{number}", 1)
        one.world.bind(f"full-n{number}", f"n{number}", share(f"{50 + number}Gi"))  # so that no two are alike
    for number in range(10):
        one.refuse(f"p{number}", limits=share("45Gi"), annotations={"lading.dev/share-anti-affinity": f"x{number}"})
    one.scan()
    fits: list[str] = []

    def counted(capacity: NodeCapacity, *text: Any) -> Sequence[CardFilter]:
        fits.append(capacity.name)
        return find_filters(capacity, *text)

    monkeypatch.setattr("central.search.fit.find_filters", counted)
    one.world.deleted("full-n3")
    assert len(one.scan()) == FOR_EACH_NODE
    assert fits == ["n3"] * 10


def test_others_have_their_turn_within_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{number}" for number in range(10)]
    one = Waking(nodes=nodes)
    one.refuse(*(f"p{number}" for number in range(200)))
    for number in range(20):
        one.refuse(f"q{number}", limits=share(f"{1 + number}Gi"))
    for node in nodes:
        one.world.deleted(f"full-{node}")
    judged = costing(one, 0.001, monkeypatch)

    async def story() -> list[int]:
        scan, between = asyncio.create_task(one.waker.scan()), []
        while not scan.done():
            before = len(judged)
            await asyncio.sleep(0)
            between.append(len(judged) - before)
        return between

    between = run_simulated(story())
    assert sum(between) >= 21 * 10
    assert max(between) <= SLICE_S / 0.001 + 1


def test_a_release_is_observed_soon_whatever_else_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{number}" for number in range(20)]
    one = with_a_larger_node(nodes)
    for node in nodes:
        one.world.deleted(f"full-{node}")
    costing(one, JUDGED_S, monkeypatch)  # one node a look
    assert one.scan() == []
    one.world.deleted("full-large")
    assert one.scan() + one.scan() == ["a"]


def test_what_waits_for_long_is_observed_whatever_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{number}" for number in range(20)]
    one = with_a_larger_node(nodes)
    one.world.deleted("full-large")
    costing(one, JUDGED_S, monkeypatch)
    requeued = []
    for first, second in zip(nodes[::2], nodes[1::2], strict=True):
        one.world.deleted(f"full-{first}")
        one.world.deleted(f"full-{second}")
        requeued += one.scan()
    assert requeued == ["a"]


# Touching them


def test_a_touch_that_fails_is_tried_again_while_the_pod_is_refused() -> None:
    one = Waking()

    async def story() -> None:
        running = asyncio.create_task(one.waker.run())
        one.refuse("a")
        failures = iter([UnclearError("a"), UnclearError("b"), None])
        one.fail = lambda _: next(failures)
        one.world.deleted("full-n1")
        await asyncio.sleep(60)
        running.cancel()
        await asyncio.wait([running])

    run_simulated(story())
    assert one.touched == ["a"] * 3
    assert one.world.records.count(Event.POD_WOKEN) == 3
    assert one.world.scheduler.counts.requeued == 1


@pytest.mark.parametrize("kind", [NotFoundError, ConflictError, ForbiddenError])
def test_a_touch_that_is_refused_is_not_sent_again(kind: type[NotFoundError]) -> None:
    one = Waking()

    async def story() -> None:
        running = asyncio.create_task(one.waker.run())
        one.refuse("a")
        one.fail = lambda _: kind("no", status=403)
        one.world.deleted("full-n1")
        await asyncio.sleep(60)
        running.cancel()
        await asyncio.wait([running])

    run_simulated(story())
    assert one.touched == ["a"]


@pytest.mark.parametrize("end", ["fits", "gone"])
def test_who_is_refused_no_more_is_touched_no_more(end: str) -> None:
    one = Waking()

    async def story() -> None:
        running = asyncio.create_task(one.waker.run())
        one.refuse("a")
        one.fail = lambda _: UnclearError("away")
        one.world.deleted("full-n1")
        await asyncio.sleep(2 * SCAN_S)
        if end == "gone":
            one.world.deleted("a")
        else:
            one.world.show("a")  # another value of the same pod
            one.world.filter("a")
        await asyncio.sleep(60)
        running.cancel()
        await asyncio.wait([running])

    run_simulated(story())
    assert one.touched == ["a"]


def test_touches_that_fail_for_ever_keep_no_one_from_being_requeued() -> None:
    one = Waking(gpus=AT_ONCE)

    async def story() -> None:
        running = asyncio.create_task(one.waker.run())
        bad = [f"bad{number:03}" for number in range(2 * AT_ONCE)]
        one.refuse(*bad, limits={"lading.dev/gpu": str(AT_ONCE)}, priority=1)
        one.fail = lambda name: UnclearError("no") if name.startswith("bad") else None
        one.world.deleted("full-n1")
        await asyncio.sleep(30)
        one.world.show("good", {"lading.dev/gpu": "1"})
        one.world.filter("good", "n7")
        one.world.report("n1", AT_ONCE, unhealthy="Xid 79")
        one.world.report("n1", AT_ONCE)
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])

    run_simulated(story())
    assert "good" in one.touched


def test_from_release_to_touch_p99() -> None:
    """Release devices 500 times, and measure the seconds from each release in the ledger to the patch of the pod that waits
    for them."""
    one = Waking()
    took: list[float] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(one.waker.run())
        for number in range(500):
            one.world.show(f"p{number}")
            one.world.filter(f"p{number}", "n1")
            await asyncio.sleep(0.037)
            holder = f"p{number - 1}" if number else "full-n1"
            released, before = loop.time(), len(one.touched)
            one.world.deleted(holder)
            await asyncio.sleep(3 * SCAN_S)
            took.append(one.at[before] - released)
            one.world.filter(f"p{number}", "n1")
            reserved = one.world.scheduler.reserve(uid_of(f"p{number}"), "n1")
            assert isinstance(reserved, Reservation)
            one.world.scheduler.confirm(reserved)
        running.cancel()
        await asyncio.wait([running])

    run_simulated(story())
    assert sorted(took)[int(len(took) * 0.99)] <= 2 * SCAN_S


# nodes that a filter call had no time to judge


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_a_pod_that_was_refused_before_all_nodes_were_judged_is_requeued_once_they_are(policy: Policy) -> None:
    world = World(policy=policy, slice_s=0.0)
    for name in ("n1", "n2"):
        world.node(name, 1, vfs=1)
    world.bind("full", "n1")
    waker = Requeuer(world.scheduler, lambda _: asyncio.sleep(0), clock=lambda: world.now, log=world.records.log)
    scan(waker)
    world.show("a", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    world.filter("a", "n1")
    assert (scan(waker), scan(waker)) == (["a"], [])
    assert world.filter("a", "n1", "n2").fitting == ["n2"]


def test_requests_that_are_not_judged_to_the_end_take_turns() -> None:
    """Check requests that need many nodes each."""
    world = World(slice_s=0.0)
    for number in range(4):
        world.node(f"n{number}", 1, vfs=1)
    for name, vfs in (("a", "1"), ("b", "2")):
        world.show(name, {"lading.dev/gpu": "1", "lading.dev/rdma": vfs})
        world.filter(name, "elsewhere")
    now = iter(range(1000))
    waker = Requeuer(world.scheduler, lambda _: asyncio.sleep(0), clock=lambda: float(next(now)), log=world.records.log)
    first = [next(iter(world.scheduler.unfinished)) for _ in range(2) if scan(waker) is not None]
    assert len(set(first)) == 2


def pending(body: bytes) -> Pending:
    shown = msgspec.json.decode(body, type=Pod)
    ask = parse_request(shown)
    assert isinstance(ask, DeviceRequest)
    return pending_of(shown, ask)


def test_every_touch_is_a_new_version_and_no_other_pod_is_touched(tmp_path: Path) -> None:
    async def story() -> None:
        async with FakeKubeServer() as server:
            access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
            async with KubeClient(access, user_agent="test") as client:
                touch = partial(touch_pod, client)
                await server.put(pod_path("a"), pod("a"))
                known = pending(await client.get(pod_path("a")))
                known.refused_at = 1.0
                first = msgspec.json.decode(await touch(known))
                known.refused_at = None
                second = msgspec.json.decode(await touch(known))
                assert first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]
                conditions = [one["status"]["conditions"][0] for one in (first, second)]
                assert [one["type"] for one in conditions] == [CONDITION, CONDITION]
                assert [one["reason"] for one in conditions] == ["RoomAppeared", "BindingUnclear"]
                assert conditions[0]["message"] != conditions[1]["message"]
                await server.put(pod_path("a"), {**pod("a"), "metadata": {"uid": "another"}})
                with pytest.raises(ConflictError):
                    await touch(known)
                await server.remove(pod_path("a"))
                with pytest.raises(NotFoundError):
                    await touch(known)

    asyncio.run(story())
