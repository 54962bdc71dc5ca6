"""Test which pods are requeued when devices become free: pods that may use these, a few at a time, none twice for the same
devices."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
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


class FullCluster:
    """Create a cluster where the pod `full-n1` holds all cards of n1, and a requeuer that has read all of it."""

    def __init__(self, *, gpus: int = 1, nodes: Iterable[str] = ("n1",), policy: Policy = Policy.BINPACK) -> None:
        self.world = World(policy=policy)
        for name in nodes:
            self.world.node(name, gpus)
            self.world.bind(f"full-{name}", name, {"lading.dev/gpu": str(gpus)})
        self.requeuer = Requeuer(self.world.scheduler, self._touch, clock=lambda: self.world.now, log=self.world.records.log)
        self.touched: list[str] = []
        self.at: list[float] = []  # the time of each patch
        self.fail: Callable[[str], KubeError | None] = lambda _: None
        self.scan()

    async def _touch(self, pod: Pending) -> None:
        self.touched.append(pod.name)
        self.at.append(asyncio.get_running_loop().time())
        if error := self.fail(pod.name):
            raise error

    def refuse(self, *names: str, limits: dict[str, str] = WHOLE, **options: Any) -> None:
        for name in names:
            assert not self.world.ask(name, "n1", limits=limits, **options).fitting

    def scan(self) -> list[str]:
        return scan(self.requeuer)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> FullCluster:
    """Create a full cluster, with the options that are the parameter."""
    return FullCluster(**getattr(request, "param", {}))


@pytest.fixture
async def requeuing(cluster: FullCluster) -> AsyncIterator[FullCluster]:
    running = asyncio.create_task(cluster.requeuer.run())
    yield cluster
    running.cancel()
    await asyncio.wait([running])


def scan(requeuer: Requeuer) -> list[str]:
    return [pod.name for pod in run_simulated(requeuer.scan())]


def cards(*numbers: int) -> Taken:
    """Return these whole cards of n1."""
    return Taken(gpus={GpuUuid(gpu_uuid("n1", number)): Part(whole=True) for number in numbers})


def test_no_pod_is_requeued_without_a_free_card(cluster: FullCluster) -> None:
    cluster.refuse("a")
    assert cluster.scan() == []
    cluster.world.report("n1", 1, grants=[grant("uid-x", "n1", 0)])
    cluster.world.deleted("full-n1")
    assert cluster.scan() == []


def test_a_release_requeues_the_pod_that_then_fits(cluster: FullCluster) -> None:
    cluster.refuse("a")
    cluster.refuse("two-cards", limits={"lading.dev/gpu": "2"})
    cluster.world.deleted("full-n1")
    assert cluster.scan() == ["a"]
    assert cluster.scan() == []


@pytest.mark.parametrize("back", ["healthy", "uncordoned", "reconciled", "ready", "reported", "grant gone", "prediction over"])
def test_a_pod_is_requeued_whatever_made_the_card_free(back: str) -> None:
    world = World()
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
        world.ask("other")
    world.ask("a", "n1")
    assert world.is_refused("a")
    assert world.requeued() == []
    if back == "ready":
        world.readiness("n1", True)
    elif back == "prediction over":
        world.ledger.expire(PREDICTION_S)
    else:
        world.report("n1", 1)
    assert world.requeued() == ["a"]


def test_a_pod_that_cannot_use_the_free_card_is_requeued_once(cluster: FullCluster) -> None:
    cluster.refuse("a")
    cluster.world.deleted("full-n1")
    assert cluster.scan() == ["a"]
    cluster.world.filter("a", "n7")  # there is room on n1, where it may not go
    assert [cluster.scan() for _ in range(20)] == [[]] * 20


def test_a_pod_is_requeued_once_for_each_card_that_becomes_free() -> None:
    cluster = FullCluster(nodes=("n1", "n2"))
    cluster.refuse("a")
    cluster.world.deleted("full-n1")
    assert cluster.scan() == ["a"]
    cluster.world.deleted("full-n2")
    assert cluster.scan() == ["a"]


def test_a_pod_is_not_requeued_again_for_a_card_that_is_too_little() -> None:
    cluster = FullCluster(gpus=2, nodes=("n1", "n2"))
    cluster.world.deleted("full-n2")
    cluster.world.bind("half", "n2")
    cluster.world.bind("other-half", "n2")
    cluster.scan()
    cluster.refuse("a", "b", *(f"p{number:02}" for number in range(20)), limits={"lading.dev/gpu": "2"})
    cluster.world.deleted("full-n1")
    first = cluster.scan()
    cluster.world.deleted("half")
    second = cluster.scan()
    assert "a" in first
    assert not set(first) & set(second)


def test_no_more_pods_are_requeued_once_the_card_is_taken(cluster: FullCluster) -> None:
    cluster.refuse(*(f"p{number:02}" for number in range(20)))
    cluster.world.deleted("full-n1")
    assert len(cluster.scan()) == FOR_EACH_NODE
    cluster.world.filter("p00")  # takes it
    assert cluster.scan() == []


def test_all_of_a_thousand_equal_pods_are_requeued_a_few_at_a_time(cluster: FullCluster) -> None:
    cluster.refuse(*(f"p{number:04}" for number in range(1000)))
    cluster.world.deleted("full-n1")
    scans = [cluster.scan() for _ in range(1000 // FOR_EACH_NODE)]
    assert all(len(requeued) == FOR_EACH_NODE for requeued in scans)
    assert len({name for requeued in scans for name in requeued}) == 1000  # each had its turn
    assert cluster.scan() == []


@pytest.mark.long
def test_a_few_of_a_thousand_different_pods_are_requeued_at_a_time(cluster: FullCluster) -> None:
    for number in range(1000):
        cluster.refuse(f"p{number:04}", limits=share(f"{1000 + number}Mi"))
    cluster.world.deleted("full-n1")
    assert len(cluster.scan()) == FOR_EACH_NODE


def test_pods_are_requeued_by_priority_and_age_whatever_they_request(cluster: FullCluster) -> None:
    for number in range(20):
        cluster.refuse(f"young{number:02}", created="2026-11-21T02:00:00Z")
    cluster.refuse("old", limits=share("1Gi"), created="2026-11-21T01:00:00Z")
    cluster.refuse("high", limits=share("2Gi"), priority=7, created="2026-11-21T03:00:00Z")
    cluster.world.deleted("full-n1")
    assert cluster.scan()[:3] == ["high", "old", "young00"]


def test_pods_that_were_not_requeued_yet_get_half_of_the_places() -> None:
    cluster = FullCluster(nodes=("n1", "n2"))
    names = [f"p{number:02}" for number in range(3 * FOR_EACH_NODE)]
    cluster.refuse(*names)
    observed: set[str] = set()
    cluster.world.deleted("full-n1")
    for _ in range(6):  # each round begins before the former is through
        observed.update(cluster.scan())
        cluster.world.report("n1", 1, unhealthy="Xid 79")
        cluster.world.report("n1", 1)
    assert observed == set(names)


def test_a_card_that_is_reserved_for_a_pod_requeues_that_pod_alone(cluster: FullCluster) -> None:
    cluster.refuse("high", priority=9)
    cluster.refuse("low")
    world = cluster.world
    world.ledger.claims.nominate(uid_of("high"), "n1", cards(0), 100.0)
    assert cluster.scan() == []
    world.deleted("full-n1")
    assert cluster.scan() == ["high"]
    assert cluster.scan() == []
    assert world.filter("low").fitting == []
    assert world.filter("high").fitting == ["n1"]


def test_a_pod_with_a_reservation_is_requeued_once_all_of_its_cards_are_free() -> None:
    cluster = FullCluster(gpus=2)
    world = cluster.world
    world.deleted("full-n1")
    world.bind("x", "n1")
    world.bind("y", "n1")
    cluster.refuse("high", limits={"lading.dev/gpu": "2"}, priority=9)
    world.ledger.claims.nominate(uid_of("high"), "n1", cards(0, 1), 100.0)
    cluster.scan()
    world.deleted("x")
    assert cluster.scan() == []
    world.deleted("y")
    assert cluster.scan() == ["high"]


# Cost of a scan


def costing(cluster: FullCluster, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[tuple[DeviceRequest, str]]:
    """Let each judgement of a request on a node take this long from now on. Return the judged requests."""
    fits_on = cluster.world.scheduler.fits_on
    judged: list[tuple[DeviceRequest, str]] = []

    def judge(ask: DeviceRequest, node: str) -> bool:
        judged.append((ask, node))
        cluster.world.now += seconds
        return fits_on(ask, node)

    monkeypatch.setattr(cluster.world.scheduler, "fits_on", judge)
    return judged


def with_a_larger_node(nodes: Sequence[str]) -> FullCluster:
    """Add a node where pod a fits, while no other node has enough."""
    cluster = FullCluster(nodes=nodes)
    cluster.world.node("large", 2)
    cluster.world.bind("full-large", "large", {"lading.dev/gpu": "2"})
    cluster.scan()
    cluster.refuse("a", limits={"lading.dev/gpu": "2"})
    return cluster


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_requests_beyond_the_cached_ones_are_judged_for_the_freed_node_alone(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("central.rank.verdicts.REMEMBERED", 4)
    cluster = FullCluster(nodes=(), policy=policy)
    for number in range(20):
        cluster.world.node(f"n{number}", 1)
        cluster.world.bind(f"full-n{number}", f"n{number}", share(f"{50 + number}Gi"))  # so that no two are alike
    for number in range(10):
        cluster.refuse(f"p{number}", limits=share("45Gi"), annotations={"lading.dev/share-anti-affinity": f"x{number}"})
    cluster.scan()
    fits: list[str] = []

    def counted(capacity: NodeCapacity, *text: Any) -> Sequence[CardFilter]:
        fits.append(capacity.name)
        return find_filters(capacity, *text)

    monkeypatch.setattr("central.search.fit.find_filters", counted)
    cluster.world.deleted("full-n3")
    assert len(cluster.scan()) == FOR_EACH_NODE
    assert fits == ["n3"] * 10


NODES = [f"n{number}" for number in range(10)]


@pytest.mark.parametrize("cluster", [{"nodes": NODES}], indirect=True)
async def test_others_have_their_turn_within_a_scan(cluster: FullCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.refuse(*(f"p{number}" for number in range(200)))
    for number in range(20):
        cluster.refuse(f"q{number}", limits=share(f"{1 + number}Gi"))
    for node in NODES:
        cluster.world.deleted(f"full-{node}")
    judged = costing(cluster, 0.001, monkeypatch)
    scan, between = asyncio.create_task(cluster.requeuer.scan()), []
    while not scan.done():
        before = len(judged)
        await asyncio.sleep(0)
        between.append(len(judged) - before)
    assert sum(between) >= 21 * 10
    assert max(between) <= SLICE_S / 0.001 + 1


def test_a_new_release_is_handled_before_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{number}" for number in range(20)]
    cluster = with_a_larger_node(nodes)
    for node in nodes:
        cluster.world.deleted(f"full-{node}")
    costing(cluster, JUDGED_S, monkeypatch)  # a scan has time for one node
    assert cluster.scan() == []
    cluster.world.deleted("full-large")
    assert cluster.scan() + cluster.scan() == ["a"]


def test_an_older_release_is_handled_while_new_ones_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{number}" for number in range(20)]
    cluster = with_a_larger_node(nodes)
    cluster.world.deleted("full-large")
    costing(cluster, JUDGED_S, monkeypatch)
    requeued = []
    for first, second in zip(nodes[::2], nodes[1::2], strict=True):
        cluster.world.deleted(f"full-{first}")
        cluster.world.deleted(f"full-{second}")
        requeued += cluster.scan()
    assert requeued == ["a"]


# Patches that requeue a pod


async def test_a_patch_that_fails_is_tried_again_while_the_pod_is_refused(requeuing: FullCluster) -> None:
    requeuing.refuse("a")
    failures = iter([UnclearError("a"), UnclearError("b"), None])
    requeuing.fail = lambda _: next(failures)
    requeuing.world.deleted("full-n1")
    await asyncio.sleep(60)
    assert requeuing.touched == ["a"] * 3
    assert requeuing.world.records.count(Event.POD_WOKEN) == 3
    assert requeuing.world.scheduler.counts.requeued == 1


@pytest.mark.parametrize("kind", [NotFoundError, ConflictError, ForbiddenError])
async def test_a_patch_that_the_api_server_refuses_is_not_sent_again(requeuing: FullCluster, kind: type[NotFoundError]) -> None:
    requeuing.refuse("a")
    requeuing.fail = lambda _: kind("no", status=403)
    requeuing.world.deleted("full-n1")
    await asyncio.sleep(60)
    assert requeuing.touched == ["a"]


@pytest.mark.parametrize("end", ["fits", "gone"])
async def test_a_failed_patch_is_not_repeated_for_a_pod_that_is_refused_no_more(requeuing: FullCluster, end: str) -> None:
    requeuing.refuse("a")
    requeuing.fail = lambda _: UnclearError("away")
    requeuing.world.deleted("full-n1")
    await asyncio.sleep(2 * SCAN_S)
    if end == "gone":
        requeuing.world.deleted("a")
    else:
        requeuing.world.show("a")  # another value of the same pod
        requeuing.world.filter("a")
    await asyncio.sleep(60)
    assert requeuing.touched == ["a"]


@pytest.mark.parametrize("cluster", [{"gpus": AT_ONCE}], indirect=True)
async def test_patches_that_always_fail_delay_no_other_pod(requeuing: FullCluster) -> None:
    bad = [f"bad{number:03}" for number in range(2 * AT_ONCE)]
    requeuing.refuse(*bad, limits={"lading.dev/gpu": str(AT_ONCE)}, priority=1)
    requeuing.fail = lambda name: UnclearError("no") if name.startswith("bad") else None
    requeuing.world.deleted("full-n1")
    await asyncio.sleep(30)
    requeuing.world.ask("good", "n7", limits={"lading.dev/gpu": "1"})
    requeuing.world.report("n1", AT_ONCE, unhealthy="Xid 79")
    requeuing.world.report("n1", AT_ONCE)
    await asyncio.sleep(1)
    assert "good" in requeuing.touched


async def test_a_waiting_pod_is_patched_soon_after_a_release(requeuing: FullCluster) -> None:
    """Release devices 500 times, and measure the seconds from each release in the ledger to the patch of the pod that waits
    for them."""
    took: list[float] = []
    loop = asyncio.get_running_loop()
    for number in range(500):
        requeuing.world.ask(f"p{number}", "n1")
        await asyncio.sleep(0.037)
        holder = f"p{number - 1}" if number else "full-n1"
        released, before = loop.time(), len(requeuing.touched)
        requeuing.world.deleted(holder)
        await asyncio.sleep(3 * SCAN_S)
        took.append(requeuing.at[before] - released)
        requeuing.world.filter(f"p{number}", "n1")
        reserved = requeuing.world.scheduler.reserve(uid_of(f"p{number}"), "n1")
        assert isinstance(reserved, Reservation)
        requeuing.world.scheduler.confirm(reserved)
    assert sorted(took)[int(len(took) * 0.99)] <= 2 * SCAN_S


# nodes that a filter call had no time to judge


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_a_pod_that_was_refused_before_all_nodes_were_judged_is_requeued_once_they_are(policy: Policy) -> None:
    world = World(policy=policy, slice_s=0.0)
    for name in ("n1", "n2"):
        world.node(name, 1, vfs=1)
    world.bind("full", "n1")
    world.requeued()
    world.ask("a", "n1", limits={"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    assert (world.requeued(), world.requeued()) == (["a"], [])
    assert world.filter("a", "n1", "n2").fitting == ["n2"]


def test_requests_that_are_not_judged_to_the_end_take_turns() -> None:
    """Check requests that need many nodes each."""
    world = World(slice_s=0.0)
    for number in range(4):
        world.node(f"n{number}", 1, vfs=1)
    for name, vfs in (("a", "1"), ("b", "2")):
        world.ask(name, "elsewhere", limits={"lading.dev/gpu": "1", "lading.dev/rdma": vfs})
    now = iter(range(1000))
    requeuer = Requeuer(world.scheduler, lambda _: asyncio.sleep(0), clock=lambda: float(next(now)), log=world.records.log)
    first = [next(iter(world.scheduler.unfinished)) for _ in range(2) if scan(requeuer) is not None]
    assert len(set(first)) == 2


def pending(body: bytes) -> Pending:
    shown = msgspec.json.decode(body, type=Pod)
    ask = parse_request(shown)
    assert isinstance(ask, DeviceRequest)
    return pending_of(shown, ask)


async def test_every_touch_is_a_new_version_and_no_other_pod_is_touched(tmp_path: Path) -> None:
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
