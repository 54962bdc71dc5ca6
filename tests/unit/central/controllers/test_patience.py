"""Test reservations for pods that waited for long: when, where, how much, and their effect on other pods."""

from pathlib import Path
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
from tests.fakes.led import REFUSED, Led, play

PATIENCE_S = 60.0


async def bound(one: Led, name: str, **options: Any) -> None:
    await one.put_pod(name, **options)
    assert await one.schedule(name) == ""
    await one.pause()


async def refused(one: Led, name: str, gpus: int = 2, **options: Any) -> None:
    await one.put_pod(name, {RESOURCE_GPU: str(gpus)}, **options)
    assert await one.schedule(name) == REFUSED


async def small_ones_on(one: Led, *nodes: str) -> None:
    """Bind a pod with one card to each of the nodes."""
    for number, node in enumerate(nodes):
        await one.put_pod(f"small-{number}")
        one.filter(f"small-{number}", node)
        assert await one.bind(f"small-{number}", node) == ""
        await one.pause()


async def wait_in_vain(one: Led, name: str, *names: str) -> None:
    """Refuse the pod once more after its patience, as kube-scheduler asks again."""
    await one.pause(PATIENCE_S)
    assert one.filter(name, *names) == []
    await one.pause(2 * SCAN_S)


async def large_waits_for_small(one: Led) -> None:
    """Hold one of two cards, and let a pod that requests both wait for its patience."""
    await one.report("n1", 2)
    await bound(one, "small")
    await refused(one, "large")
    await wait_in_vain(one, "large")


async def end(one: Led, name: str) -> None:
    await one.remove_pod(name)
    await one.pause(2 * SCAN_S)


def kept_on(one: Led, name: str) -> str:
    making, keeping = one.leadership.scheduler.room_for(one.uid(name))
    assert making == ""
    return keeping


def requeued(one: Led, name: str) -> bool:
    return bool(one.sent(f"{pod_path(name)}/status"))


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
def test_a_stream_of_small_pods_holds_a_large_one_up_no_longer_than_its_patience(tmp_path: Path, patience_s: float) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        for number in range(8):
            await bound(one, f"small-{number}")
        await refused(one, "large", 8)
        waited = 0
        for number in range(40):  # one ends, and one more comes before the large one can start
            await end(one, f"small-{number}")
            await one.put_pod(f"small-{number + 8}")
            await one.schedule(f"small-{number + 8}")
            await one.pause(10)
            waited += 1
            if await one.schedule("large") == "":
                break
            if not one.bound_to(f"small-{number + 8}") and not patience_s:
                pytest.fail("a small pod is refused")
        assert (one.bound_to("large") == "n1") == bool(patience_s)
        assert not patience_s or waited <= PATIENCE_S / 10 + 9  # the small ones that ran then

    play(story, tmp_path, patience_s=patience_s)


SHORT_S = 2.0  # patience, so that a node is left soon
STAY_S = SHORT_S * PATIENCES


def test_room_is_not_kept_for_ever_where_no_pod_ends(tmp_path: Path) -> None:
    """Let n1 lack one card whose pod does not end, while on n2 pods end and other pods take their cards."""

    async def story(one: Led) -> None:
        await one.report("n1", 4)
        await one.put_node("n2", 4)
        await small_ones_on(one, "n1", "n2", "n2", "n2", "n2")
        await refused(one, "large", 4)
        await one.pause(SHORT_S + 2 * SCAN_S)
        assert kept_on(one, "large") == "n1"
        await one.pause(STAY_S / 2)
        assert kept_on(one, "large") == "n1"
        await one.pause(STAY_S / 2 + 2 * SCAN_S)
        assert kept_on(one, "large") == "n2"
        await bound(one, "next")  # the cards of n1 are free for others again
        assert one.bound_to("next") == "n1"
        for number in range(1, 5):
            await end(one, f"small-{number}")
            await one.pause(STAY_S / 2)
        assert kept_on(one, "large") == "n2"
        assert await one.schedule("large") == ""

    play(story, tmp_path, patience_s=SHORT_S)


def test_a_node_stays_if_no_other_one_can_do(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "small")
        await refused(one, "large")
        await one.pause(SHORT_S + 2 * SCAN_S)
        for _ in range(3):
            assert kept_on(one, "large") == "n1"
            await one.pause(STAY_S)
        await end(one, "small")
        assert await one.schedule("large") == ""

    play(story, tmp_path, patience_s=SHORT_S)


def test_it_is_requeued_when_its_room_is_there_and_nothing_is_kept_afterwards(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await large_waits_for_small(one)
        assert kept_on(one, "large") == "n1"
        assert one.records.count(Event.ROOM_KEPT) == 1
        await one.put_pod("next")
        assert await one.schedule("next") == REFUSED  # the free card is kept
        assert not requeued(one, "large")
        await end(one, "small")
        assert requeued(one, "large")
        assert await one.schedule("large") == ""
        await one.pause(2 * SCAN_S)
        assert one.leadership.ledger.nominations() == ()

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_nothing_is_kept_before_the_patience_is_over(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "small")
        await refused(one, "large")
        await one.pause(PATIENCE_S / 2)
        assert one.filter("large") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == ""
        await bound(one, "next")

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_the_node_is_the_one_with_the_fewest_missing_cards_of_those_that_were_asked_about(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name, gpus in (("n1", 3), ("n2", 3), ("n3", 3)):
            await one.put_node(name, gpus)
        await small_ones_on(one, "n1", "n1", "n2", "n3")
        await refused(one, "large", 3)
        await wait_in_vain(one, "large", "n1", "n3")  # n2 has another taint
        assert kept_on(one, "large") == "n3"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_node_counts_that_kube_scheduler_named_before_its_cpu_was_held(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name, gpus in (("n1", 2), ("n2", 1)):
            await one.put_node(name, gpus)
        await small_ones_on(one, "n1")
        await refused(one, "large")
        await wait_in_vain(one, "large", "n1")
        assert one.filter("large", "n2") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == "n1"

    play(story, tmp_path, patience_s=PATIENCE_S)


# ---- nodes that kube-scheduler does not name, because other pods hold their cpu

CAPACITY = {"cpu": "8", "memory": "64Gi"}
FOUR = {"cpu": "4"}


async def full_of_cpu(one: Led, name: str, gpus: int = 2, **options: Any) -> None:
    """Fill the node's cpu with a pod on each of its GPUs but one."""
    await one.put_node(name, gpus, allocatable=CAPACITY, **options)
    for number in range(gpus - 1):
        pod = f"{name}-{number}"
        await one.put_pod(pod, requests={"cpu": "6"} if not number else None, created="2026-11-20T00:00:00Z")
        one.filter(pod, name)
        assert await one.bind(pod, name) == ""
        await one.pause()


async def cannot_be_placed(one: Led, name: str, gpus: int = 2, **options: Any) -> None:
    """Leave no node with enough cpu, so that kube-scheduler asks central about none."""
    await one.put_pod(name, {RESOURCE_GPU: str(gpus)}, requests=FOUR, unschedulable=True, **options)
    await one.pause(PATIENCE_S + 3 * SCAN_S)


def affinity(key: str, value: str) -> Json:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}


def test_room_is_kept_for_a_pod_about_which_kube_scheduler_cannot_ask(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1")
        await cannot_be_placed(one, "large")
        assert kept_on(one, "large") == "n1"
        await one.put_pod("next")
        assert await one.schedule("next") == REFUSED  # the free card is kept
        await end(one, "n1-0")
        assert requeued(one, "large")
        assert await one.schedule("large") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_nothing_is_kept_for_it_before_its_patience_is_over(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1")
        await one.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR, unschedulable=True)
        await one.pause(PATIENCE_S / 2)
        assert kept_on(one, "large") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_pod_that_kube_scheduler_has_not_tried_gets_none(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1")
        await one.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR)  # a scheduling gate is closed
        await one.pause(2 * PATIENCE_S)
        assert kept_on(one, "large") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


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
def test_a_node_that_was_not_named_is_judged_by_the_rules_of_the_pod(
    tmp_path: Path, of_pod: Json, of_node: Json, kept: str
) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1", **of_node)
        await cannot_be_placed(one, "large", rules=of_pod)
        assert kept_on(one, "large") == kept

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_node_that_is_cordoned_afterwards_is_left(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1")
        await full_of_cpu(one, "n2", 3)
        await cannot_be_placed(one, "large")
        assert kept_on(one, "large") == "n1"
        await one.put_node("n1", 2, allocatable=CAPACITY, cordoned=True)
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == "n2"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_nodes_whose_cpu_or_cards_could_never_suffice_are_passed_over(tmp_path: Path) -> None:
    """Check many such nodes that would otherwise be preferred."""

    async def story(one: Led) -> None:
        for number in range(TRIED):
            await one.put_node(f"n1-{number}", 2, allocatable={"cpu": "3", "memory": "64Gi"})
            await one.put_node(f"n0-{number}", 1, allocatable={"cpu": "3", "memory": "64Gi"})
        await full_of_cpu(one, "n2", 3)
        await cannot_be_placed(one, "large")
        assert kept_on(one, "large") == "n2"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_node_with_enough_cpu_that_was_not_named_is_not_taken(tmp_path: Path) -> None:
    """Check a node that kube-scheduler leaves out for another reason, such as a volume."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 2, allocatable=CAPACITY)
        await one.put_node("n2", 2, allocatable=CAPACITY)
        await small_ones_on(one, "n1", "n2", "n2")
        await one.put_pod("large", {RESOURCE_GPU: "2"}, requests=FOUR)
        assert one.filter("large", "n2") == []
        await wait_in_vain(one, "large", "n2")
        assert kept_on(one, "large") == "n2"

    play(story, tmp_path, patience_s=PATIENCE_S)


async def vetoes(one: Led, node: str, *named: str) -> None:
    """Let kube-scheduler leave out the node although its cpu is free."""
    assert kept_on(one, "large") == node
    await end(one, f"{node}-0")
    await one.pause(OBSERVED_S)
    assert one.filter("large", *named) == []
    await one.pause(2 * SCAN_S)


def test_a_node_that_kube_scheduler_does_not_name_once_its_cpu_suffices_is_left_for_another(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1", 3)
        await full_of_cpu(one, "n2", 4)
        for name in ("n3", "n4"):
            await one.put_node(name, 1, allocatable=CAPACITY)  # named, and too small
        await cannot_be_placed(one, "large", 3)
        await vetoes(one, "n1", "n3", "n4")
        assert kept_on(one, "large") == "n2"
        await one.put_pod("next")
        assert one.filter("next", "n1") == ["n1"]  # the reservation there has ended
        await one.pause(PATIENCE_S / 2)
        assert kept_on(one, "large") == "n2"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_one_other_name_alone_may_be_a_guess(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1", 3)
        await one.put_node("n2", 1, allocatable=CAPACITY)
        await cannot_be_placed(one, "large", 3)
        await vetoes(one, "n1", "n2")
        assert kept_on(one, "large") == "n1"
        assert one.filter("large", "n2") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == ""
        await one.pause(PATIENCE_S)
        assert one.filter("large", "n1", "n2") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == "n1"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_after_some_such_nodes_only_those_that_were_named_are_taken(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        nodes = [f"n{number}" for number in range(MOST_ABANDONED + 1)]
        for name in nodes:
            await full_of_cpu(one, name, 3)
        for name in ("small-1", "small-2"):
            await one.put_node(name, 1, allocatable=CAPACITY)
        await cannot_be_placed(one, "large", 3)
        for name in nodes[:MOST_ABANDONED]:
            await vetoes(one, name, "small-1", "small-2")
        assert kept_on(one, "large") == ""
        assert one.filter("large", nodes[-1], "small-1") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == nodes[-1]

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_pods_for_which_no_node_can_do_do_not_keep_others_from_their_turn(tmp_path: Path) -> None:
    """Check many such pods: one scan searches for some of them."""

    async def story(one: Led) -> None:
        await full_of_cpu(one, "n1")
        for number in range(REMEMBERED):
            await one.put_pod(f"hopeless-{number}", {RESOURCE_GPU: "8"}, unschedulable=True)
        await cannot_be_placed(one, "large", created="2026-11-22T00:00:00Z")
        assert kept_on(one, "large") == "n1"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_pod_that_its_quota_would_refuse_gets_none(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_quota("team", most=1)
        await full_of_cpu(one, "n1")
        await cannot_be_placed(one, "large", labels={"quota.scheduling.koordinator.sh/name": "team"})
        assert kept_on(one, "large") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_room_is_complete_when_the_cpu_suffices_too(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.server.put(node_path("n1"), kube_objects.node("n1", allocatable={"cpu": "8", "memory": "64Gi"}))
        await one.report("n1", 3)
        for number, cpu in enumerate(("1", "6")):
            await bound(one, f"small-{number}", requests={"cpu": cpu})
        await refused(one, "large", requests={"cpu": "4"})
        await wait_in_vain(one, "large")
        await end(one, "small-0")  # two cards are free, and two cores
        await one.pause(NOMINATION_S + 2 * SCAN_S)
        assert kept_on(one, "large") == "n1"
        await end(one, "small-1")
        assert kept_on(one, "large") == "n1"
        assert one.leadership.ledger.capacity("n1").cpu_milli == 4000  # the other half is kept, too
        await one.pause(NOMINATION_S + 2 * SCAN_S)
        assert kept_on(one, "large") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_only_as_many_pods_as_the_cluster_may_keep_room_for(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name in ("n1", "n2"):
            await one.put_node(name, 2)
        await small_ones_on(one, "n1", "n2")
        for number, name in enumerate(("first", "second")):
            await refused(one, name, created=f"2026-11-21T00:00:0{number}Z")
        await wait_in_vain(one, "first")
        await wait_in_vain(one, "second")
        assert [bool(kept_on(one, name)) for name in ("first", "second")] == [True, False]
        await one.remove_pod("first")
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "second") != ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_pod_of_higher_priority_gets_the_room(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "small", priority=5)
        await refused(one, "large", priority=5)
        await wait_in_vain(one, "large")
        assert kept_on(one, "large") == "n1"
        await one.put_pod("urgent", priority=9, never=True)
        assert await one.schedule("urgent") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_pod_that_does_not_take_its_room_loses_it(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await large_waits_for_small(one)
        await end(one, "small")
        await one.put_pod("next")
        assert await one.schedule("next") == REFUSED
        await one.pause(NOMINATION_S + 2 * SCAN_S)
        assert kept_on(one, "large") == ""
        assert requeued(one, "next")
        assert await one.schedule("next") == ""
        assert one.filter("large") == []
        await one.pause(2 * SCAN_S)
        assert kept_on(one, "large") == ""
        await wait_in_vain(one, "large")
        assert kept_on(one, "large") == "n1"

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_pod_that_wants_one_card_gets_none_kept(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "small")
        await refused(one, "other", 1)
        await wait_in_vain(one, "other")
        assert kept_on(one, "other") == ""

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_a_node_that_is_too_small_is_not_kept(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "small")
        await refused(one, "large", 4)
        await wait_in_vain(one, "large")
        assert kept_on(one, "large") == ""
        await bound(one, "next")

    play(story, tmp_path, patience_s=PATIENCE_S)


def test_why_says_where(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await large_waits_for_small(one)
        pod = one.leadership.pending.get(one.uid("large"))
        assert pod is not None
        reason = why_pending(one.leadership.scheduler, pod, 0.0)
        assert (reason.making_room_on, reason.keeping_room_on) == ("", "n1")

    play(story, tmp_path, patience_s=PATIENCE_S)
