"""Test how objects of the API server get into the ledger and the pending pods."""

import json

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.watch import Unreadable
from central.decide.scheduler import Reservation
from central.ledger.model import Claim
from central.request.pod import DEVICES_HEALTHY, Pod
from central.search.placement import Missing
from lading.kube.objects import Metadata
from lading.log import Event
from lading.nodedevices import NodeDevices
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import NAMESPACE, WHOLE, decoded, devices, gpu_uuid, pod
from tests.unit.central.world import World, uid_of


def world() -> World:
    made = World()
    made.node("n1", 2)
    return made


def assignment(pod_uid: str, node: str, card: int = 0) -> dict[str, str]:
    gpu = {"uuid": gpu_uuid("n1", card), "bdf": f"0000:{0x10 + card:02x}:00.0"}
    text = {"v": 1, "pod": pod_uid, "node": node, "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    return {ASSIGNMENT: json.dumps(text)}


def unreadable(name: str, uid: str = "") -> Unreadable:
    return Unreadable(metadata=Metadata(name=name, namespace=NAMESPACE, uid=uid or uid_of(name)), why="of another age")


def relist(made: World, *objects: Pod | Unreadable, version: int = 0) -> None:
    made.pod_feed.replaced(objects, str(version or made.next_version()))


def free_cards(made: World, node: str = "n1") -> int:
    return sum(card.free for card in made.ledger.capacity(node).cards)


# Pods


def test_a_bound_pod_holds_what_its_assignment_says_until_it_is_over() -> None:
    made = world()
    made.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"))
    assert free_cards(made) == 1
    made.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), deleting=True)
    assert free_cards(made) == 1
    made.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), phase="Succeeded")
    assert (free_cards(made), made.unassigned) == (2, [])


def test_what_a_pod_says_of_its_devices_is_known_until_it_is_deleted() -> None:
    made = world()
    message = [{"type": "Ready", "status": "True"}, {"type": DEVICES_HEALTHY, "status": "False", "message": "m"}]
    for name in ("a", "b", "c", "d"):
        made.pods[name] = pod(name, version=made.next_version(), node="n1")
        made.pods[name]["status"]["conditions"] = message if name != "b" else message[:1]
        made.pod_feed.changed(decoded(made.pods[name]))

    def known() -> list[str]:
        return [name for name in made.pods if made.conditions.get(uid_of(name))]

    assert known() == ["a", "c", "d"]
    made.pod_feed.removed(Ident(NAMESPACE, "a", uid_of("a")), str(made.next_version()))
    assert known() == ["c", "d"]
    relist(made, unreadable("d"))
    assert known() == ["d"]


@pytest.mark.parametrize("forged", [assignment("uid-b", "n1"), assignment(uid_of("a"), "n2"), {ASSIGNMENT: "{"}])
def test_a_forged_or_unreadable_assignment_holds_nothing_and_is_reported_once(forged: dict[str, str]) -> None:
    made = world()
    for _ in range(3):
        made.show("a", node="n1", annotations=forged)
    assert (free_cards(made), made.records.count(Event.ASSIGNMENT_UNREADABLE)) == (2, 1)
    made.deleted("a")
    made.show("a", node="n1", annotations=forged)
    assert made.records.count(Event.ASSIGNMENT_UNREADABLE) == 2


def test_an_assignment_on_a_pod_that_is_not_bound_holds_nothing() -> None:
    made = world()
    made.show("a", annotations=assignment(uid_of("a"), "n1"))
    assert (free_cards(made), len(made.pending)) == (2, 1)
    assert made.records.count(Event.ASSIGNMENT_UNREADABLE) == 0  # nor is it looked at


@pytest.mark.parametrize("limits", [WHOLE, {"lading.dev/gpux": "1"}])
def test_a_pod_that_asks_and_is_bound_without_an_assignment_learns_of_once(limits: dict[str, str]) -> None:
    made = world()
    for _ in range(3):
        made.show("a", limits, node="n1", scheduler="default-scheduler")
    relist(made, decoded(made.pods["a"]))
    assert made.unassigned == ["a"]
    assert (len(made.pending), free_cards(made)) == (0, 2)


def test_of_other_pods_nothing_is_kept() -> None:
    made = world()
    made.show("a", {"cpu": "1"}, node="n1")
    made.show("b", {"cpu": "1"})
    made.show("c", {"nvidia.com/gpu": "1"}, scheduler="default-scheduler")
    assert (made.ledger.pod(uid_of("a")), len(made.pending), made.unassigned) == (None, 0, [])


def test_who_waits() -> None:
    made = world()
    made.show("a")
    made.show("b", scheduler="another")
    assert {one.name for one in made.pending} == {"a", "b"}
    made.show("a", deleting=True)
    made.show("b", phase="Failed")
    assert len(made.pending) == 0


def test_a_pod_whose_annotations_lost_their_meaning_waits_no_more() -> None:
    made = world()
    made.show("a")
    made.show("a", annotations={"lading.dev/policy": "best"})
    assert len(made.pending) == 0


def test_a_pod_that_no_one_can_decode_is_not_deleted() -> None:
    made = world()
    made.bind("a", "n1")
    made.show("b")
    relist(made, unreadable("a"), unreadable("b"))
    assert (free_cards(made), {one.name for one in made.pending}) == (1, {"b"})
    made.pod_feed.changed(unreadable("a"))
    assert free_cards(made) == 1
    made.deleted("a")
    assert free_cards(made) == 2


def test_a_list_without_them_ends_pods() -> None:
    made = world()
    made.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), deleting=True)
    made.show("b")
    relist(made)
    assert (free_cards(made), len(made.pending)) == (2, 0)


def test_a_pod_that_no_watch_ever_showed_ends_with_the_list_that_lacks_it() -> None:
    # kube-scheduler was faster, and the pod was bound and deleted while our watch was away.
    made = world()
    made.pods["a"] = pod("a", version=made.next_version())
    made.filter("a")
    reserved = made.scheduler.reserve(uid_of("a"), "n1")
    assert isinstance(reserved, Reservation)
    made.scheduler.confirm(reserved)
    relist(made)
    assert (made.ledger.reservations(), made.is_free("n1"), len(made.pending)) == ((), True, 0)


def test_a_pod_that_is_newer_than_the_list_stays() -> None:
    made = world()
    made.pods["a"] = pod("a", version=90)
    made.filter("a")
    relist(made, version=80)
    assert len(made.pending) == 1


def test_the_annotation_counts_what_several_containers_have_of_a_card() -> None:
    made = world()
    part = {"uuid": gpu_uuid("n1", 0), "bdf": "0000:10:00.0", "memory_mib": 1000}
    text = {"v": 1, "pod": uid_of("a"), "node": "n1", "gen": 1, "containers": {"x": {"gpus": [part]}, "y": {"gpus": [part]}}}
    made.show("a", node="n1", annotations={ASSIGNMENT: json.dumps(text)})
    card = made.ledger.capacity("n1").cards[0]
    assert (card.containers, card.pods) == (2, 1)


def test_what_the_record_knows_of_the_pod() -> None:
    made = world()
    made.show("a", node="n1", annotations=assignment(uid_of("a"), "n1"), priority=7, created="1970-01-01T00:01:00Z")
    record = made.ledger.pod(uid_of("a"))
    assert record is not None
    assert (record.priority, record.created, record.deleting) == (7, 60, False)


# NodeDevices and Nodes


def report(name: str, version: int, gpus: int = 1) -> NodeDevices:
    return msgspec.convert(devices(name, gpus, version=version), NodeDevices)


def test_reports_come_change_and_go() -> None:
    made = world()
    made.report("n1", 3)
    assert free_cards(made) == 3
    made.devices_feed.replaced([report("n2", made.next_version())], str(made.next_version()))
    assert made.ledger.nodes() == ("n2",)


def test_a_report_that_no_one_can_decode_stays_as_it_was_known() -> None:
    made = world()
    made.devices_feed.replaced([unreadable("n1"), unreadable("n3")], str(made.next_version()))
    assert (made.ledger.nodes(), free_cards(made)) == (("n1",), 2)
    made.devices_feed.changed(unreadable("n1"))
    assert free_cards(made) == 2


def test_a_node_that_no_one_can_decode_or_that_is_not_ready_is_not_reachable() -> None:
    made = world()
    for node_object in (unreadable("n1"), None):
        if node_object is not None:
            message = Metadata(name="n1", resource_version=str(made.next_version()))
            made.node_feed.changed(Unreadable(metadata=message, why="of another age"))
        else:
            made.readiness("n1", False)
        assert not made.ledger.capacity("n1").reachable
        made.readiness("n1", True)
        assert made.ledger.capacity("n1").reachable


REBOOTED = Missing.REBOOTED.shown


def refused(made: World) -> str:
    """Return why a pod gets nothing on the node; empty if it fits there."""
    made.show("asks")
    result = made.filter("asks", "n1")
    return " ".join((*result.fails.values(), *result.never.values()))


def test_a_node_that_has_booted_since_its_report_gives_nothing_until_it_reports() -> None:
    made = World()
    made.report("n1", boot_id="a")
    made.readiness("n1", True, boot_id="a")
    assert refused(made) == ""
    made.readiness("n1", True, boot_id="b")
    assert refused(made) == REBOOTED
    made.report("n1", boot_id="a")
    assert refused(made) == REBOOTED
    made.report("n1", boot_id="b")
    assert refused(made) == ""


def test_its_report_may_come_before_its_node_says_so() -> None:
    made = World()
    made.readiness("n1", True, boot_id="a")
    made.report("n1", boot_id="b")
    assert refused(made) == REBOOTED
    made.readiness("n1", True, boot_id="b")
    assert refused(made) == ""


@pytest.mark.parametrize(("reported", "current"), [("", "b"), ("a", ""), ("", "")])
def test_a_boot_that_no_one_says_is_no_other(reported: str, current: str) -> None:
    made = World()
    made.report("n1", boot_id=reported)
    made.readiness("n1", True, boot_id=current)
    assert refused(made) == ""


def test_a_node_that_is_removed_and_comes_back_in_a_list_has_the_boot_of_the_list() -> None:
    made = World()
    made.report("n1", boot_id="b")
    made.readiness("n1", True, boot_id="a")
    made.node_feed.replaced([], str(made.next_version()))
    made.readiness("n1", True)
    assert refused(made) == ""


def test_what_a_pod_holds_on_a_node_that_rebooted_stays_held() -> None:
    made = World()
    made.report("n1", 2, boot_id="a")
    made.readiness("n1", True, boot_id="a")
    made.bind("train", "n1")
    made.readiness("n1", True, boot_id="b")
    assert free_cards(made) == 1
    made.report("n1", 2, boot_id="b")
    assert free_cards(made) == 1


def test_a_list_of_nodes_without_it_makes_it_unreachable() -> None:
    made = world()
    made.node_feed.replaced([], str(made.next_version()))
    assert not made.ledger.capacity("n1").serving


def test_a_grant_of_a_pod_that_no_one_knows_holds_its_card() -> None:
    made = world()
    made.report("n1", 2, grants=[{"pod": "uid-x", "container": "c", "gpus": [{"uuid": gpu_uuid("n1", 1)}]}])
    assert free_cards(made) == 1
    assert [set(held.claims) for held in made.ledger.holders("n1")] == [{Claim.GRANTED}]


# Cpu and memory


def left_of(made: World, node: str = "n1") -> tuple[int, int]:
    capacity = made.ledger.capacity(node)
    assert capacity.resources_reported
    return capacity.cpu_milli, capacity.memory_mib


def with_load(*, node: str = "n1") -> World:
    """Return a node with 64 cores and 256 GiB."""
    made = world()
    made.readiness(node, True, allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
    return made


def plain(made: World, name: str, node: str = "n1", **options: object) -> Pod:
    """Return a pod without devices."""
    return made.show(name, {}, node=node, requests={"cpu": "4", "memory": "16Gi"}, **options)


def test_pods_that_are_not_ours_take_of_their_nodes_cpu_and_memory() -> None:
    made = with_load()
    plain(made, "a")
    assert left_of(made) == (60_000, 240 * 1024)
    made.show("b", node="n1", annotations=assignment(uid_of("b"), "n1"), requests={"cpu": "2"})
    assert left_of(made) == (58_000, 240 * 1024)
    plain(made, "a", phase="Succeeded")
    made.deleted("b")
    assert left_of(made) == (64_000, 256 * 1024)


def test_a_pod_that_waits_takes_nothing_yet() -> None:
    made = with_load()
    plain(made, "a", node="")
    assert left_of(made) == (64_000, 256 * 1024)
    plain(made, "a")
    made.deleted("a")
    assert left_of(made) == (64_000, 256 * 1024)


def test_a_relist_forgets_who_is_deleted_and_keeps_who_cannot_be_read() -> None:
    made = with_load()
    plain(made, "a")
    plain(made, "b")
    relist(made, unreadable("a"))
    assert left_of(made) == (60_000, 240 * 1024)


def test_pods_before_their_node_and_its_devices() -> None:
    made = World()
    plain(made, "a", "n9")
    made.readiness("n9", True, allocatable={"cpu": "8", "memory": "32Gi"})
    made.report("n9", 1)
    assert left_of(made, "n9") == (4000, 16 * 1024)


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "64"}, {"cpu": "64", "memory": "1Gi"}])
def test_a_node_says_what_it_has_or_does_not(allocatable: dict[str, str]) -> None:
    made = with_load()
    made.readiness("n1", True, allocatable=allocatable)
    assert made.ledger.capacity("n1").resources_reported == (len(allocatable) == 2)


def test_a_node_that_is_deleted_has_no_cpu_to_tell_of() -> None:
    made = with_load()
    made.node_feed.removed(Ident("", "n1", "uid-n1"), str(made.next_version()))
    assert not made.ledger.capacity("n1").resources_reported
    made = with_load()
    made.node_feed.replaced([], str(made.next_version()))
    assert not made.ledger.capacity("n1").resources_reported
