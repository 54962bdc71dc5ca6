"""Test reservations for pods that waited for long: when, where, how much, and their effect on other pods."""

from typing import Any

import pytest

from central.controllers.patience import MOST_ABANDONED, REMEMBERED, SCAN_S, TRIED
from central.decide.reservation import OBSERVED_S, PATIENCES
from central.decide.why_pod import why_pending
from central.ledger.claims import NOMINATION_S
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes import kube_objects
from tests.fakes.kube_objects import Json, node_path, pod_path
from tests.fakes.led import REFUSED, Led

PATIENCE_S = 60.0
pytestmark = pytest.mark.central(patience_s=PATIENCE_S)


async def refused(cluster: Led, name: str, gpus: int = 2, **options: Any) -> None:
    await cluster.refuse(name, {RESOURCE_GPU: str(gpus)}, **options)


async def fill(cluster: Led, *nodes: str) -> None:
    """Bind a pod with one card to each of the nodes."""
    for number, node in enumerate(nodes):
        await cluster.place(f"small-{number}", on=node)


async def wait_in_vain(cluster: Led, name: str, *names: str) -> None:
    """Refuse the pod once more after its patience, as kube-scheduler asks again."""
    await cluster.pause(PATIENCE_S)
    assert cluster.filter(name, *names) == []
    await cluster.pause(2 * SCAN_S)


async def large_waits_for_small(cluster: Led) -> None:
    """Hold one of two cards, and let a pod that requests both wait for its patience."""
    await cluster.report("n1", 2)
    await cluster.place("small")
    await refused(cluster, "large")
    await wait_in_vain(cluster, "large")


async def end(cluster: Led, name: str) -> None:
    await cluster.remove_pod(name)
    await cluster.pause(2 * SCAN_S)


def kept_on(cluster: Led, name: str) -> str:
    making, keeping = cluster.leadership.scheduler.room_for(cluster.uid(name))
    assert making == ""
    return keeping


def requeued(cluster: Led, name: str) -> bool:
    return bool(cluster.sent(f"{pod_path(name)}/status"))


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
async def test_a_stream_of_small_pods_delays_a_large_pod_no_longer_than_its_patience(cluster: Led, patience_s: float) -> None:
    cluster.patience_s = patience_s
    await cluster.lead_again()
    await cluster.report("n1", 8)
    for number in range(8):
        await cluster.place(f"small-{number}")
    await refused(cluster, "large", 8)
    waited = 0
    for number in range(40):  # a small pod ends, and the next one comes before the large pod can start
        await end(cluster, f"small-{number}")
        await cluster.put_pod(f"small-{number + 8}")
        await cluster.schedule(f"small-{number + 8}")
        await cluster.pause(10)
        waited += 1
        if await cluster.schedule("large") == "":
            break
        if not cluster.bound_to(f"small-{number + 8}") and not patience_s:
            pytest.fail("a small pod is refused")
    assert (cluster.bound_to("large") == "n1") == bool(patience_s)
    assert not patience_s or waited <= PATIENCE_S / 10 + 9  # the small pods that ran when room was first kept


SHORT_S = 2.0  # patience, so that a node is left soon
STAY_S = SHORT_S * PATIENCES


@pytest.mark.central(patience_s=SHORT_S)
async def test_room_is_not_kept_for_ever_where_no_pod_ends(cluster: Led) -> None:
    """Let n1 lack one card whose pod does not end, while on n2 pods end and other pods take their cards."""
    await cluster.report("n1", 4)
    await cluster.put_node("n2", 4)
    await fill(cluster, "n1", "n2", "n2", "n2", "n2")
    await refused(cluster, "large", 4)
    await cluster.pause(SHORT_S + 2 * SCAN_S)
    assert kept_on(cluster, "large") == "n1"
    await cluster.pause(STAY_S / 2)
    assert kept_on(cluster, "large") == "n1"
    await cluster.pause(STAY_S / 2 + 2 * SCAN_S)
    assert kept_on(cluster, "large") == "n2"
    await cluster.place("next")  # the cards of n1 are free for others again
    assert cluster.bound_to("next") == "n1"
    for number in range(1, 5):
        await end(cluster, f"small-{number}")
        await cluster.pause(STAY_S / 2)
    assert kept_on(cluster, "large") == "n2"
    assert await cluster.schedule("large") == ""


@pytest.mark.central(patience_s=SHORT_S)
async def test_the_reservation_stays_on_its_node_if_no_other_node_is_large_enough(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await cluster.place("small")
    await refused(cluster, "large")
    await cluster.pause(SHORT_S + 2 * SCAN_S)
    for _ in range(3):
        assert kept_on(cluster, "large") == "n1"
        await cluster.pause(STAY_S)
    await end(cluster, "small")
    assert await cluster.schedule("large") == ""


async def test_a_pod_is_requeued_when_its_room_is_free_and_nothing_is_kept_afterwards(cluster: Led) -> None:
    await large_waits_for_small(cluster)
    assert kept_on(cluster, "large") == "n1"
    assert cluster.records.count(Event.ROOM_KEPT) == 1
    await cluster.put_pod("next")
    assert await cluster.schedule("next") == REFUSED  # the free card is kept
    assert not requeued(cluster, "large")
    await end(cluster, "small")
    assert requeued(cluster, "large")
    assert await cluster.schedule("large") == ""
    await cluster.pause(2 * SCAN_S)
    assert cluster.leadership.ledger.nominations() == ()


async def test_nothing_is_kept_before_the_patience_is_over(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await cluster.place("small")
    await refused(cluster, "large")
    await cluster.pause(PATIENCE_S / 2)
    assert cluster.filter("large") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == ""
    await cluster.place("next")


async def test_room_is_kept_on_the_named_node_with_the_fewest_missing_cards(cluster: Led) -> None:
    for name, gpus in (("n1", 3), ("n2", 3), ("n3", 3)):
        await cluster.put_node(name, gpus)
    await fill(cluster, "n1", "n1", "n2", "n3")
    await refused(cluster, "large", 3)
    await wait_in_vain(cluster, "large", "n1", "n3")  # n2 has another taint
    assert kept_on(cluster, "large") == "n3"


async def test_room_may_be_kept_on_a_node_that_kube_scheduler_named_earlier(cluster: Led) -> None:
    for name, gpus in (("n1", 2), ("n2", 1)):
        await cluster.put_node(name, gpus)
    await fill(cluster, "n1")
    await refused(cluster, "large")
    await wait_in_vain(cluster, "large", "n1")
    assert cluster.filter("large", "n2") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == "n1"


# ---- nodes that kube-scheduler does not name, because other pods hold their cpu

CAPACITY = {"cpu": "8", "memory": "64Gi"}
FOUR = {"cpu": "4"}


async def full_of_cpu(cluster: Led, name: str, gpus: int = 2, **options: Any) -> None:
    """Fill the node's cpu with a pod on each of its GPUs but one."""
    await cluster.put_node(name, gpus, allocatable=CAPACITY, **options)
    for number in range(gpus - 1):
        pod = f"{name}-{number}"
        await cluster.put_pod(pod, requests={"cpu": "6"} if not number else None, created="2026-11-20T00:00:00Z")
        cluster.filter(pod, name)
        assert await cluster.bind(pod, name) == ""
        await cluster.pause()


async def cannot_be_placed(cluster: Led, name: str, gpus: int = 2, **options: Any) -> None:
    """Leave no node with enough cpu, so that kube-scheduler asks central about none."""
    await cluster.put_pod(name, {RESOURCE_GPU: str(gpus)}, requests=FOUR, unschedulable=True, **options)
    await cluster.pause(PATIENCE_S + 3 * SCAN_S)


def affinity(key: str, value: str) -> Json:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}


async def test_room_is_kept_for_a_pod_about_which_kube_scheduler_cannot_ask(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1")
    await cannot_be_placed(cluster, "large")
    assert kept_on(cluster, "large") == "n1"
    await cluster.put_pod("next")
    assert await cluster.schedule("next") == REFUSED  # the free card is kept
    await end(cluster, "n1-0")
    assert requeued(cluster, "large")
    assert await cluster.schedule("large") == ""


async def test_nothing_is_kept_for_an_unschedulable_pod_before_its_patience_is_over(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1")
    await cluster.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR, unschedulable=True)
    await cluster.pause(PATIENCE_S / 2)
    assert kept_on(cluster, "large") == ""


async def test_nothing_is_kept_for_a_pod_that_kube_scheduler_has_not_tried(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1")
    await cluster.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR)  # a scheduling gate is closed
    await cluster.pause(2 * PATIENCE_S)
    assert kept_on(cluster, "large") == ""


@pytest.mark.parametrize(
    ("of_pod", "of_node", "kept"),
    [
        ({}, {}, "n1"),
        ({"nodeSelector": {"pool": "gpu"}}, {}, ""),
        ({"nodeSelector": {"pool": "gpu"}}, {"labels": {"pool": "gpu"}}, "n1"),
        (affinity("zone", "a"), {"labels": {"zone": "b"}}, ""),
        (affinity("zone", "a"), {"labels": {"zone": "a"}}, "n1"),
        ({}, {"taints": ["team"]}, ""),
        ({"tolerations": [{"key": "team", "operator": "Exists"}]}, {"taints": ["team"]}, "n1"),
        ({"nodeSelector": {f"k{number}": "v" for number in range(1000)}}, {}, ""),  # more than is judged
    ],
)
async def test_a_node_that_kube_scheduler_did_not_name_is_judged_by_the_node_rules_of_the_pod(
    cluster: Led, of_pod: Json, of_node: Json, kept: str
) -> None:
    await full_of_cpu(cluster, "n1", **of_node)
    await cannot_be_placed(cluster, "large", rules=of_pod)
    assert kept_on(cluster, "large") == kept


async def test_the_reservation_leaves_a_node_that_is_cordoned(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1")
    await full_of_cpu(cluster, "n2", 3)
    await cannot_be_placed(cluster, "large")
    assert kept_on(cluster, "large") == "n1"
    await cluster.put_node("n1", 2, allocatable=CAPACITY, cordoned=True)
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == "n2"


async def test_nodes_whose_cpu_or_cards_could_never_suffice_are_passed_over(cluster: Led) -> None:
    """Check many such nodes that would otherwise be preferred."""
    for number in range(TRIED):
        await cluster.put_node(f"n1-{number}", 2, allocatable={"cpu": "3", "memory": "64Gi"})
        await cluster.put_node(f"n0-{number}", 1, allocatable={"cpu": "3", "memory": "64Gi"})
    await full_of_cpu(cluster, "n2", 3)
    await cannot_be_placed(cluster, "large")
    assert kept_on(cluster, "large") == "n2"


async def test_no_room_is_kept_on_a_node_with_enough_cpu_that_kube_scheduler_did_not_name(cluster: Led) -> None:
    """Check a node that kube-scheduler leaves out for another reason, such as a volume."""
    await cluster.put_node("n1", 2, allocatable=CAPACITY)
    await cluster.put_node("n2", 2, allocatable=CAPACITY)
    await fill(cluster, "n1", "n2", "n2")
    await cluster.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR)
    assert cluster.filter("large", "n2") == []
    await wait_in_vain(cluster, "large", "n2")
    assert kept_on(cluster, "large") == "n2"


async def vetoes(cluster: Led, node: str, *named: str) -> None:
    """Let kube-scheduler leave out the node although its cpu is free."""
    assert kept_on(cluster, "large") == node
    await end(cluster, f"{node}-0")
    await cluster.pause(OBSERVED_S)
    assert cluster.filter("large", *named) == []
    await cluster.pause(2 * SCAN_S)


async def test_the_reservation_leaves_a_node_that_kube_scheduler_does_not_name_once_its_cpu_suffices(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1", 3)
    await full_of_cpu(cluster, "n2", 4)
    for name in ("n3", "n4"):
        await cluster.put_node(name, 1, allocatable=CAPACITY)  # named, and too small
    await cannot_be_placed(cluster, "large", 3)
    await vetoes(cluster, "n1", "n3", "n4")
    assert kept_on(cluster, "large") == "n2"
    await cluster.put_pod("next")
    assert cluster.filter("next", "n1") == ["n1"]  # the reservation there has ended
    await cluster.pause(PATIENCE_S / 2)
    assert kept_on(cluster, "large") == "n2"


async def test_the_reservation_stays_for_one_more_call_if_kube_scheduler_named_a_single_other_node(cluster: Led) -> None:
    await full_of_cpu(cluster, "n1", 3)
    await cluster.put_node("n2", 1, allocatable=CAPACITY)
    await cannot_be_placed(cluster, "large", 3)
    await vetoes(cluster, "n1", "n2")
    assert kept_on(cluster, "large") == "n1"
    assert cluster.filter("large", "n2") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == ""
    await cluster.pause(PATIENCE_S)
    assert cluster.filter("large", "n1", "n2") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == "n1"


async def test_after_some_abandoned_nodes_only_named_nodes_are_reserved(cluster: Led) -> None:
    nodes = [f"n{number}" for number in range(MOST_ABANDONED + 1)]
    for name in nodes:
        await full_of_cpu(cluster, name, 3)
    for name in ("small-1", "small-2"):
        await cluster.put_node(name, 1, allocatable=CAPACITY)
    await cannot_be_placed(cluster, "large", 3)
    for name in nodes[:MOST_ABANDONED]:
        await vetoes(cluster, name, "small-1", "small-2")
    assert kept_on(cluster, "large") == ""
    assert cluster.filter("large", nodes[-1], "small-1") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == nodes[-1]


async def test_pods_for_which_no_node_is_large_enough_do_not_delay_others(cluster: Led) -> None:
    """Check many such pods: one scan searches for some of them."""
    await full_of_cpu(cluster, "n1")
    for number in range(REMEMBERED):
        await cluster.put_pod(f"hopeless-{number}", {RESOURCE_GPU: "8"}, unschedulable=True)
    await cannot_be_placed(cluster, "large", created="2026-11-22T00:00:00Z")
    assert kept_on(cluster, "large") == "n1"


async def test_a_pod_that_its_quota_would_refuse_gets_none(cluster: Led) -> None:
    await cluster.put_quota("team", most=1)
    await full_of_cpu(cluster, "n1")
    await cannot_be_placed(cluster, "large", labels={"quota.scheduling.koordinator.sh/name": "team"})
    assert kept_on(cluster, "large") == ""


async def test_room_is_complete_when_the_cpu_suffices_too(cluster: Led) -> None:
    await cluster.server.put(node_path("n1"), kube_objects.node("n1", allocatable={"cpu": "8", "memory": "64Gi"}))
    await cluster.report("n1", 3)
    for number, cpu in enumerate(("1", "6")):
        await cluster.place(f"small-{number}", requests={"cpu": cpu})
    await refused(cluster, "large", requests={"cpu": "4"})
    await wait_in_vain(cluster, "large")
    await end(cluster, "small-0")  # two cards are free, and two cores
    await cluster.pause(NOMINATION_S + 2 * SCAN_S)
    assert kept_on(cluster, "large") == "n1"
    await end(cluster, "small-1")
    assert kept_on(cluster, "large") == "n1"
    assert cluster.leadership.ledger.capacity("n1").cpu_milli == 4000  # the other half is kept, too
    await cluster.pause(NOMINATION_S + 2 * SCAN_S)
    assert kept_on(cluster, "large") == ""


async def test_the_number_of_pods_for_which_room_is_kept_is_bounded(cluster: Led) -> None:
    for name in ("n1", "n2"):
        await cluster.put_node(name, 2)
    await fill(cluster, "n1", "n2")
    for number, name in enumerate(("first", "second")):
        await refused(cluster, name, created=f"2026-11-21T00:00:0{number}Z")
    await wait_in_vain(cluster, "first")
    await wait_in_vain(cluster, "second")
    assert [bool(kept_on(cluster, name)) for name in ("first", "second")] == [True, False]
    await cluster.remove_pod("first")
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "second") != ""


async def test_a_pod_of_higher_priority_takes_the_kept_room(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await cluster.place("small", priority=5)
    await refused(cluster, "large", priority=5)
    await wait_in_vain(cluster, "large")
    assert kept_on(cluster, "large") == "n1"
    await cluster.place("urgent", priority=9, never=True)


async def test_a_pod_that_does_not_use_its_kept_room_loses_the_reservation(cluster: Led) -> None:
    await large_waits_for_small(cluster)
    await end(cluster, "small")
    await cluster.refuse("next")
    await cluster.pause(NOMINATION_S + 2 * SCAN_S)
    assert kept_on(cluster, "large") == ""
    assert requeued(cluster, "next")
    assert await cluster.schedule("next") == ""
    assert cluster.filter("large") == []
    await cluster.pause(2 * SCAN_S)
    assert kept_on(cluster, "large") == ""
    await wait_in_vain(cluster, "large")
    assert kept_on(cluster, "large") == "n1"


async def test_no_room_is_kept_for_a_pod_that_requests_one_card(cluster: Led) -> None:
    await cluster.place("small")
    await refused(cluster, "other", 1)
    await wait_in_vain(cluster, "other")
    assert kept_on(cluster, "other") == ""


async def test_no_room_is_kept_on_a_node_that_is_too_small(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await cluster.place("small")
    await refused(cluster, "large", 4)
    await wait_in_vain(cluster, "large")
    assert kept_on(cluster, "large") == ""
    await cluster.place("next")


async def test_the_reason_why_a_pod_waits_names_the_node_with_its_kept_room(cluster: Led) -> None:
    await large_waits_for_small(cluster)
    pod = cluster.leadership.pending.get(cluster.uid("large"))
    assert pod is not None
    reason = why_pending(cluster.leadership.scheduler, pod, 0.0)
    assert (reason.making_room_on, reason.keeping_room_on) == ("", "n1")
