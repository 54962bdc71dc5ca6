"""Test how objects of the API server get into the ledger and the pending pods."""

import json

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.controllers.informer import PodFeed
from central.decide.scheduler import Reservation
from central.ledger.model import Claim
from central.request.dialects.options import DialectName, DialectOptions
from central.request.parse import Dialects
from central.request.pod import DEVICES_HEALTHY, Pod
from central.search.placement import Missing
from lading.kube.objects import Metadata
from lading.log import Event
from lading.nodedevices import NodeDevices
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import NAMESPACE, WHOLE, decoded, devices, gpu_uuid, pod
from tests.unit.central.world import World, uid_of


@pytest.fixture
def world() -> World:
    return World.of(n1=2)


def assignment(pod_uid: str, node: str, card: int = 0) -> dict[str, str]:
    gpu = {"uuid": gpu_uuid("n1", card), "bdf": f"0000:{0x10 + card:02x}:00.0"}
    text = {"v": 1, "pod": pod_uid, "node": node, "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    return {ASSIGNMENT: json.dumps(text)}


def unreadable(name: str, uid: str = "") -> Unreadable:
    return Unreadable(metadata=Metadata(name=name, namespace=NAMESPACE, uid=uid or uid_of(name)), why="of another age")


def relist(world: World, *objects: Pod | Unreadable, version: int = 0) -> None:
    world.pod_feed.replaced(objects, str(version or world.next_version()))


def free_cards(world: World, node: str = "n1") -> int:
    return sum(card.free for card in world.ledger.capacity(node).cards)


# Pods


def test_a_bound_pod_holds_what_its_assignment_says_until_it_is_over(world: World) -> None:
    world.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"))
    assert free_cards(world) == 1
    world.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), deleting=True)
    assert free_cards(world) == 1
    world.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), phase="Succeeded")
    assert (free_cards(world), world.unassigned) == (2, [])


def test_the_devices_healthy_condition_of_a_pod_is_kept_until_the_pod_is_deleted(world: World) -> None:
    message = [{"type": "Ready", "status": "True"}, {"type": DEVICES_HEALTHY, "status": "False", "message": "m"}]
    for name in ("a", "b", "c", "d"):
        world.pods[name] = pod(name, version=world.next_version(), node="n1")
        world.pods[name]["status"]["conditions"] = message if name != "b" else message[:1]
        world.pod_feed.changed(decoded(world.pods[name]))

    def known() -> list[str]:
        return [name for name in world.pods if world.conditions.get(uid_of(name))]

    assert known() == ["a", "c", "d"]
    world.pod_feed.removed(Ident(NAMESPACE, "a", uid_of("a")), str(world.next_version()))
    assert known() == ["c", "d"]
    relist(world, unreadable("d"))
    assert known() == ["d"]


@pytest.mark.parametrize("forged", [assignment("uid-b", "n1"), assignment(uid_of("a"), "n2"), {ASSIGNMENT: "{"}])
def test_a_forged_or_unreadable_assignment_holds_nothing_and_is_reported_once(world: World, forged: dict[str, str]) -> None:
    for _ in range(3):
        world.show("a", node="n1", annotations=forged)
    assert (free_cards(world), world.records.count(Event.ASSIGNMENT_UNREADABLE)) == (2, 1)
    world.deleted("a")
    world.show("a", node="n1", annotations=forged)
    assert world.records.count(Event.ASSIGNMENT_UNREADABLE) == 2


def test_an_assignment_on_a_pod_that_is_not_bound_holds_nothing(world: World) -> None:
    world.show("a", annotations=assignment(uid_of("a"), "n1"))
    assert (free_cards(world), len(world.pending)) == (2, 1)
    assert world.records.count(Event.ASSIGNMENT_UNREADABLE) == 0  # the annotation is not even read


@pytest.mark.parametrize("limits", [WHOLE, {"lading.dev/gpux": "1"}])
def test_a_pod_that_is_bound_without_an_assignment_is_reported_once(world: World, limits: dict[str, str]) -> None:
    for _ in range(3):
        world.show("a", limits, node="n1", scheduler="default-scheduler")
    relist(world, decoded(world.pods["a"]))
    assert world.unassigned == ["a"]
    assert (len(world.pending), free_cards(world)) == (0, 2)


def test_pods_of_an_enabled_dialect_wait_and_are_not_reported_when_their_own_scheduler_binds_them(world: World) -> None:
    dialects = Dialects(DialectOptions(enabled=(DialectName.HAMI, DialectName.KUBESHARE)))
    unassigned: list[Pod] = []
    feed = PodFeed(
        world.ledger,
        world.pending,
        world.conditions,
        log=world.records.log,
        unassigned=unassigned.append,
        dialects=dialects,
    )
    hami, kubeshare = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, {"sharedgpu/gpu_request": "1.0"}
    kubeshare |= {"sharedgpu/gpu_limit": "1.0"}
    for node in ("", "n1"):
        feed.changed(decoded(pod("h", hami, version=world.next_version(), node=node)))
        feed.changed(decoded(pod("k", {}, labels=kubeshare, version=world.next_version(), node=node)))
        assert {one.name for one in world.pending} == (set() if node else {"h", "k"})
    assert unassigned == []


def test_pods_without_requests_are_not_kept(world: World) -> None:
    world.show("a", {"cpu": "1"}, node="n1")
    world.show("b", {"cpu": "1"})
    world.show("c", {"nvidia.com/gpu": "1"}, scheduler="default-scheduler")
    assert (world.ledger.pod(uid_of("a")), len(world.pending), world.unassigned) == (None, 0, [])


def test_unbound_pods_with_requests_are_pending(world: World) -> None:
    world.show("a")
    world.show("b", scheduler="another")
    assert {one.name for one in world.pending} == {"a", "b"}
    world.show("a", deleting=True)
    world.show("b", phase="Failed")
    assert len(world.pending) == 0


def test_a_pod_whose_request_becomes_malformed_is_pending_no_more(world: World) -> None:
    world.show("a")
    world.show("a", annotations={"lading.dev/policy": "best"})
    assert len(world.pending) == 0


def test_an_unreadable_pod_keeps_its_devices(world: World) -> None:
    world.bind("a", "n1")
    world.show("b")
    relist(world, unreadable("a"), unreadable("b"))
    assert (free_cards(world), {one.name for one in world.pending}) == (1, {"b"})
    world.pod_feed.changed(unreadable("a"))
    assert free_cards(world) == 1
    world.deleted("a")
    assert free_cards(world) == 2


def test_pods_that_a_list_lacks_are_removed(world: World) -> None:
    world.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), deleting=True)
    world.show("b")
    relist(world)
    assert (free_cards(world), len(world.pending)) == (2, 0)


def test_a_bound_pod_that_no_watch_showed_ends_with_the_list_that_lacks_it(world: World) -> None:
    # kube-scheduler was faster, and the pod was bound and deleted while our watch was away.
    world.pods["a"] = pod("a", version=world.next_version())
    world.filter("a")
    reserved = world.scheduler.reserve(uid_of("a"), "n1")
    assert isinstance(reserved, Reservation)
    world.scheduler.confirm(reserved)
    relist(world)
    assert (world.ledger.reservations(), world.is_free("n1"), len(world.pending)) == ((), True, 0)


def test_a_pod_that_is_newer_than_the_list_stays(world: World) -> None:
    world.pods["a"] = pod("a", version=90)
    world.filter("a")
    relist(world, version=80)
    assert len(world.pending) == 1


def test_the_annotation_counts_what_several_containers_have_of_a_card(world: World) -> None:
    part = {"uuid": gpu_uuid("n1", 0), "bdf": "0000:10:00.0", "memory_mib": 1000}
    text = {"v": 1, "pod": uid_of("a"), "node": "n1", "gen": 1, "containers": {"x": {"gpus": [part]}, "y": {"gpus": [part]}}}
    world.show("a", node="n1", annotations={ASSIGNMENT: json.dumps(text)})
    card = world.ledger.capacity("n1").cards[0]
    assert (card.containers, card.pods) == (2, 1)


def test_the_record_of_a_pod_has_its_priority_age_and_generation(world: World) -> None:
    world.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), priority=7, created="1970-01-01T00:01:00Z")
    record = world.ledger.pod(uid_of("a"))
    assert record is not None
    assert (record.priority, record.created, record.deleting) == (7, 60, False)


# NodeDevices and Nodes


def report(name: str, version: int, gpus: int = 1) -> NodeDevices:
    return msgspec.convert(devices(name, gpus, version=version), NodeDevices)


def test_node_reports_are_added_changed_and_removed(world: World) -> None:
    world.report("n1", 3)
    assert free_cards(world) == 3
    world.devices_feed.replaced([report("n2", world.next_version())], str(world.next_version()))
    assert world.ledger.nodes() == ("n2",)


def test_an_unreadable_report_keeps_the_last_one(world: World) -> None:
    world.devices_feed.replaced([unreadable("n1"), unreadable("n3")], str(world.next_version()))
    assert (world.ledger.nodes(), free_cards(world)) == (("n1",), 2)
    world.devices_feed.changed(unreadable("n1"))
    assert free_cards(world) == 2


def test_an_unreadable_node_or_a_node_that_is_not_ready_is_unreachable(world: World) -> None:
    for node_object in (unreadable("n1"), None):
        if node_object is not None:
            message = Metadata(name="n1", resource_version=str(world.next_version()))
            world.node_feed.changed(Unreadable(metadata=message, why="of another age"))
        else:
            world.readiness("n1", False)
        assert not world.ledger.capacity("n1").reachable
        world.readiness("n1", True)
        assert world.ledger.capacity("n1").reachable


REBOOTED, UNREACHABLE = Missing.REBOOTED.shown, Missing.UNREACHABLE.shown


def refused(world: World) -> str:
    """Return why a pod gets nothing on the node; empty if it fits there."""
    result = world.ask("asks", "n1")
    return " ".join((*result.fails.values(), *result.never.values()))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [("report", "a", ""), ("node", "a", ""), ("node", "b", REBOOTED), ("report", "a", REBOOTED), ("report", "b", "")],
            id="a node that rebooted gives nothing until it reports",
        ),
        pytest.param(
            [("node", "a", ""), ("report", "b", REBOOTED), ("node", "b", "")],
            id="the report after a reboot may come before the node object",
        ),
        pytest.param([("report", "", ""), ("node", "b", "")], id="a report without a boot id is no other boot"),
        pytest.param([("report", "a", ""), ("node", "", "")], id="a node without a boot id is no other boot"),
        pytest.param([("report", "", ""), ("node", "", "")], id="no boot id at all is no other boot"),
        pytest.param(
            [("report", "b", ""), ("node", "a", REBOOTED), ("no node", "", UNREACHABLE), ("node", None, "")],
            id="a node that comes back in a list has the boot id of the list",
        ),
    ],
)
def test_a_node_gives_devices_if_its_report_is_from_its_present_boot(events: list[tuple[str, str | None, str]]) -> None:
    """Check the reason why a pod gets nothing after each event, once there are both the node object and the report."""
    world = World()
    for number, (kind, boot_id, reason) in enumerate(events):
        if kind == "report":
            world.report("n1", boot_id=boot_id)
        elif kind == "node":
            world.readiness("n1", True, boot_id=boot_id)
        else:
            world.node_feed.replaced([], str(world.next_version()))
        assert not number or refused(world) == reason


def test_devices_of_a_pod_stay_held_after_a_reboot() -> None:
    world = World()
    world.report("n1", 2, boot_id="a")
    world.readiness("n1", True, boot_id="a")
    world.bind("train", "n1")
    world.readiness("n1", True, boot_id="b")
    assert free_cards(world) == 1
    world.report("n1", 2, boot_id="b")
    assert free_cards(world) == 1


def test_a_node_that_a_list_lacks_is_unreachable(world: World) -> None:
    world.node_feed.replaced([], str(world.next_version()))
    assert not world.ledger.capacity("n1").serving


def test_a_grant_of_an_unknown_pod_holds_its_card(world: World) -> None:
    world.report("n1", 2, grants=[{"pod": "uid-x", "container": "c", "gpus": [{"uuid": gpu_uuid("n1", 1)}]}])
    assert free_cards(world) == 1
    assert [set(held.claims) for held in world.ledger.holders("n1")] == [{Claim.GRANTED}]


# Cpu and memory


def left_of(world: World, node: str = "n1") -> tuple[int, int]:
    capacity = world.ledger.capacity(node)
    assert capacity.resources_reported
    return capacity.cpu_milli, capacity.memory_mib


def with_load(*, node: str = "n1") -> World:
    """Return a node with 64 cores and 256 GiB."""
    world = World.of(n1=2)
    world.readiness(node, True, allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
    return world


def plain(world: World, name: str, node: str = "n1", **options: object) -> Pod:
    """Return a pod without devices."""
    return world.show(name, {}, node=node, requests={"cpu": "4", "memory": "16Gi"}, **options)


def test_pods_without_devices_take_cpu_and_memory_of_their_node() -> None:
    world = with_load()
    plain(world, "a")
    assert left_of(world) == (60_000, 240 * 1024)
    world.show("b", node="n1", annotations=assignment(uid_of("b"), "n1"), requests={"cpu": "2"})
    assert left_of(world) == (58_000, 240 * 1024)
    plain(world, "a", phase="Succeeded")
    world.deleted("b")
    assert left_of(world) == (64_000, 256 * 1024)


def test_a_pod_that_waits_takes_nothing_yet() -> None:
    world = with_load()
    plain(world, "a", node="")
    assert left_of(world) == (64_000, 256 * 1024)
    plain(world, "a")
    world.deleted("a")
    assert left_of(world) == (64_000, 256 * 1024)


def test_a_list_removes_deleted_pods_and_keeps_unreadable_pods() -> None:
    world = with_load()
    plain(world, "a")
    plain(world, "b")
    relist(world, unreadable("a"))
    assert left_of(world) == (60_000, 240 * 1024)


def test_pods_may_come_before_their_node_and_its_report() -> None:
    world = World()
    plain(world, "a", "n9")
    world.readiness("n9", True, allocatable={"cpu": "8", "memory": "32Gi"})
    world.report("n9", 1)
    assert left_of(world, "n9") == (4000, 16 * 1024)


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "64"}, {"cpu": "64", "memory": "1Gi"}])
def test_cpu_and_memory_are_known_if_the_node_has_both_amounts(allocatable: dict[str, str]) -> None:
    world = with_load()
    world.readiness("n1", True, allocatable=allocatable)
    assert world.ledger.capacity("n1").resources_reported == (len(allocatable) == 2)


def test_the_cpu_of_a_deleted_node_is_unknown() -> None:
    world = with_load()
    world.node_feed.removed(Ident("", "n1", "uid-n1"), str(world.next_version()))
    assert not world.ledger.capacity("n1").resources_reported
    world = with_load()
    world.node_feed.replaced([], str(world.next_version()))
    assert not world.ledger.capacity("n1").resources_reported
