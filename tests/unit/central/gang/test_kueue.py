"""Test Workloads of Kueue on a simulated cluster: central answers whether they fit, reserves their devices, and gives these to
their pods.

Kueue's side is played by tests/fakes/kueue.py.
"""

import asyncio
import random

import pytest

from central.controllers.admission_checks import SETTLE_S
from central.gang.admission import retry_s
from central.gang.workload_places import HELD_S
from central.ledger.model import Claim
from lading.kube.resource import ADMISSION_CHECKS
from lading.log import Event
from lading.vocabulary import GANG, GANG_MIN, GANG_ROLE, RESOURCE_GANG_MEMBER, WORKLOAD
from tests.fakes.kube_objects import pod, pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault, Request
from tests.fakes.kueue import CHECK, GATE, Kueue
from tests.fakes.led import REFUSED, Led
from tests.unit.central.gang.members import bound, claims, put_gang

TRAIN = {"ps": (1, 1), "worker": (4, 2)}  # nine cards


@pytest.fixture
async def kueue(cluster: Led) -> Kueue:
    """Run Kueue with the check of central, and with nine cards: eight on n1, and one on n2."""
    await cluster.report("n1", 8)
    await cluster.put_node("n2", 1)
    kueue = Kueue(cluster)
    await kueue.install()
    return kueue


@pytest.fixture
async def first(kueue: Kueue, cluster: Led) -> None:
    """Hold one card by a pod."""
    await cluster.place("first")


async def run(kueue: Kueue, scheduler: KubeScheduler, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(kueue.run(seconds))
        group.create_task(scheduler.run(seconds))


def is_answer(request: Request) -> bool:
    return request.method == "PATCH" and "/workloads/" in request.path


async def test_the_admission_check_becomes_active_and_a_check_of_another_controller_is_not_patched(cluster: Led) -> None:
    kueue = Kueue(cluster)
    await kueue.install("another.dev/checks")
    await kueue.submit("train", {"worker": (1, 1)})
    await cluster.pause(1)
    assert not [request for request in cluster.server.requests if request.method == "PATCH"]
    await kueue.install()
    await cluster.pause(1)
    (text,) = cluster.server.objects[ADMISSION_CHECKS.path(name=CHECK)]["status"]["conditions"]
    assert (text["type"], text["status"]) == ("Active", "True")
    assert len([request for request in cluster.server.requests if "/admissionchecks/" in request.path]) == 1


async def test_a_workload_that_fits_starts_and_its_pods_use_up_the_reserved_devices(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    await kueue.submit("train", TRAIN)
    await cluster.pause(1)
    assert (kueue.state("train"), claims(cluster)) == ("Ready", 5)
    assert cluster.free_cards("n1") + cluster.free_cards("n2") == 0
    await run(kueue, scheduler, 5)
    assert kueue.is_true("train", "Admitted")
    assert bound(cluster) == ["train-ps-0", "train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]
    assert (cluster.bound_to("train-ps-0"), claims(cluster)) == ("n2", 0)
    assert cluster.json("train-ps-0")["metadata"]["annotations"][WORKLOAD] == "uid-train/ps"


async def test_no_other_pod_gets_the_devices_of_a_workload_before_its_pods_are_bound(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    kueue.makes_pods = False
    await cluster.put_pod("other")
    await kueue.submit("train", TRAIN)
    await kueue.run(1)
    await scheduler.run(3)
    assert bound(cluster) == []
    kueue.make_pods("train", without=1)
    await scheduler.run(3)
    assert bound(cluster) == ["train-worker-0", "train-worker-1", "train-worker-2"]
    kueue.make_pods("train")
    await cluster.pause()
    assert scheduler.ask("other") == REFUSED
    await scheduler.run(3)
    assert len(bound(cluster)) == 5
    assert cluster.bound_to("other") == ""


@pytest.mark.usefixtures("first")
async def test_a_workload_that_does_not_fit_is_answered_retry_and_holds_nothing(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    await kueue.submit("train", TRAIN)
    await cluster.pause(SETTLE_S + 2)
    assert (kueue.state("train"), kueue.entry("train")["requeueAfterSeconds"], claims(cluster)) == ("Retry", 30, 0)
    assert kueue.entry("train")["message"] == "there is no room for all of 5 pods now"
    await kueue.submit("small", {"worker": (4, 2)})
    await run(kueue, scheduler, 3)
    assert len(bound(cluster)) == 5
    for name in bound(cluster):
        await cluster.remove_pod(name)
    kueue.finish("small")
    await run(kueue, scheduler, 40)
    assert (kueue.waited["train"], len(bound(cluster)), claims(cluster)) == ([30], 5, 0)


@pytest.mark.usefixtures("first")
async def test_no_workload_is_answered_retry_while_released_devices_become_free(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("train", TRAIN)
    await cluster.pause(SETTLE_S - 3)
    assert (kueue.state("train"), claims(cluster)) == ("Pending", 0)
    await cluster.remove_pod("first")
    await cluster.pause(2)
    assert (kueue.state("train"), claims(cluster)) == ("Ready", 5)


async def test_an_evicted_workload_is_answered_when_it_has_quota_again(cluster: Led, kueue: Kueue) -> None:
    """Check that the Workload is not answered before its pods have ended: until then its quota is still reserved and its check
    is Pending, and an answer would remain valid for the next start."""
    await kueue.submit("train", TRAIN)
    await cluster.pause(1)
    kueue.evict("train")
    await cluster.pause(SETTLE_S + 2)
    assert (kueue.state("train"), claims(cluster)) == ("Pending", 0)
    kueue.take_quota("train")
    await cluster.pause(1)
    assert (kueue.state("train"), claims(cluster)) == ("Pending", 0)
    kueue.reserve("train")
    await cluster.pause(1)
    assert (kueue.state("train"), claims(cluster)) == ("Ready", 5)


@pytest.mark.usefixtures("first")
async def test_the_pause_after_retry_doubles_up_to_five_minutes(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("train", TRAIN)
    await kueue.run(1200)
    assert kueue.waited["train"] == [30, 60, 120, 240, 300, 300, 300]
    assert (len(list(filter(is_answer, cluster.server.requests))), claims(cluster)) == (7, 0)


def test_the_pause_has_a_bound_whatever_the_count() -> None:
    assert [retry_s(count) for count in (-1, 0, 3, 4, 10**9)] == [30, 30, 240, 300, 300]


async def test_room_for_pods_that_never_come_is_free_two_minutes_after_the_admission(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    kueue.makes_pods = False
    await kueue.submit("train", TRAIN)
    await kueue.run(1)
    assert kueue.is_true("train", "Admitted")
    await cluster.pause(118)
    assert claims(cluster) == 5
    await cluster.pause(3)
    assert (claims(cluster), cluster.free_cards("n1"), kueue.state("train")) == (0, 8, "Ready")
    await cluster.put_pod("other")
    await scheduler.run(1)
    assert bound(cluster) == ["other"]


async def test_room_of_pods_that_are_never_bound_is_free_two_minutes_after_the_admission(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("train", TRAIN)
    await kueue.run(1)
    await cluster.pause(115)
    assert claims(cluster) == 5
    await cluster.pause(10)
    assert claims(cluster) == 0


async def test_a_workload_larger_than_the_empty_cluster_is_rejected(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("huge", {"worker": (5, 2)})
    await cluster.pause(1)
    assert (kueue.state("huge"), claims(cluster)) == ("Rejected", 0)
    assert kueue.entry("huge")["message"] == "of 5 pods that start together, 4 would have room on empty nodes"
    await kueue.run(1)
    assert not kueue.json("huge")["spec"]["active"]


async def test_no_workload_is_rejected_that_could_fit_if_everything_were_in_service(cluster: Led, kueue: Kueue) -> None:
    await cluster.put_node("n3", 2, unhealthy="fell off the bus")
    await cluster.put_node("n4", 2, reconciled=False)
    await kueue.submit("large", {"worker": (6, 2)})
    await kueue.submit("huge", {"worker": (7, 2)})
    await cluster.pause(SETTLE_S + 2)
    assert (kueue.state("large"), kueue.state("huge")) == ("Retry", "Rejected")
    for name in ("large", "huge"):
        assert kueue.entry(name)["message"].endswith("; 1 nodes and 2 cards are out of service")


async def test_a_malformed_pod_template_is_rejected_with_the_reason(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("wrong", {"worker": (1, 1)}, annotations={GANG: "g"})
    await kueue.submit("many", {"worker": (5000, 1)})
    await cluster.pause(1)
    assert kueue.state("wrong") == kueue.state("many") == "Rejected"
    assert kueue.entry("wrong")["message"].startswith("pod set worker: cannot use lading.dev/gang: lading.dev/gang-min")
    assert kueue.entry("many")["message"] == "5000 pods with devices are too many; 4096 at most start together"


async def test_a_workload_without_devices_is_ready_and_holds_nothing(cluster: Led, kueue: Kueue) -> None:
    await kueue.submit("plain", {"worker": (3, 0)})
    await cluster.pause(1)
    assert (kueue.state("plain"), claims(cluster)) == ("Ready", 0)
    assert "podSetUpdates" not in kueue.entry("plain")


async def test_central_answers_when_all_other_checks_are_ready(cluster: Led, kueue: Kueue) -> None:
    kueue.checks = (CHECK, "provisioning")
    await kueue.submit("train", TRAIN)
    await kueue.run(30)
    assert (kueue.state("train"), claims(cluster)) == ("Pending", 0)
    kueue.say("train", "provisioning", "Ready")
    await cluster.pause(1)
    assert (kueue.state("train"), claims(cluster)) == ("Ready", 5)


async def test_a_workload_that_loses_its_quota_or_ends_holds_nothing_any_more(cluster: Led, kueue: Kueue) -> None:
    for end in (kueue.evict, kueue.finish):
        await kueue.submit("train", TRAIN)
        await cluster.pause(1)
        assert claims(cluster) == 5
        end("train")
        await cluster.pause()
        assert claims(cluster) == 0
    await kueue.submit("train", TRAIN)
    await cluster.pause(1)
    await cluster.server.remove("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/train")
    await cluster.pause()
    assert claims(cluster) == 0


async def test_workloads_are_answered_by_priority_then_by_age(cluster: Led) -> None:
    kueue = Kueue(cluster)
    for name, priority, age in (("young", 0, 2), ("old", 0, 1), ("urgent", 9, 3)):
        await kueue.submit(name, {"worker": (1, 1)}, priority=priority, created=f"2026-11-21T00:00:0{age}Z")
    await cluster.report("n1", 2)
    await kueue.install()
    await cluster.pause(SETTLE_S + 2)
    assert [kueue.state(name) for name in ("urgent", "old", "young")] == ["Ready", "Ready", "Retry"]


async def test_a_gang_of_a_workload_starts_in_its_room_before_an_older_gang(cluster: Led, scheduler: KubeScheduler) -> None:
    kueue = Kueue(cluster)
    await kueue.install()
    await cluster.report("n1", 4)
    await cluster.place("first")
    await put_gang(cluster, "older", 4)
    await scheduler.run(1)
    await kueue.submit("train", {"worker": (3, 1)}, annotations={GANG: "train", GANG_MIN: "3"})
    await kueue.run(0.5)
    await cluster.remove_pod("first")
    await run(kueue, scheduler, 5)
    assert bound(cluster) == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert claims(cluster) == 0


async def test_a_launcher_without_devices_is_a_member_of_the_workload(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    text = {GANG: "mpi", GANG_MIN: "launcher=1", GANG_ROLE: "launcher"}
    await kueue.submit("mpi", {"launcher": (1, 0)}, limits={RESOURCE_GANG_MEMBER: "1"}, annotations=text)
    await run(kueue, scheduler, 3)
    assert (kueue.state("mpi"), bound(cluster), claims(cluster)) == ("Ready", ["mpi-launcher-0"], 0)


async def test_gated_pods_hold_nothing_and_start_when_kueue_opens_their_gates(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    names = ["a", "b"]
    group = {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-total-count": "2"}
    for name in names:
        made = pod(name, annotations=group)
        made["spec"]["schedulingGates"] = [{"name": GATE}]
        await cluster.server.put(pod_path(name), made)
    await scheduler.run(10)
    assert (bound(cluster), claims(cluster), cluster.free_cards(), scheduler.asked.total()) == ([], 0, 2, 0)
    assert cluster.sent("/status") == []
    for name in names:
        made = cluster.json(name)
        made["spec"]["schedulingGates"] = []
        await cluster.server.put(pod_path(name), made)
    await scheduler.run(3)
    assert bound(cluster) == names


async def test_room_is_planned_on_the_nodes_of_the_flavor_and_of_the_selector(cluster: Led) -> None:
    await cluster.put_node("n2", 1, labels={"card": "h100", "pool": "a"})
    await cluster.put_node("n3", 1, labels={"card": "h100"})
    kueue = Kueue(cluster)
    await kueue.put_flavor("h100", {"card": "h100"})
    await kueue.install()
    await kueue.submit("train", {"worker": (2, 1)}, flavor="h100")
    await cluster.pause(1)
    assert kueue.state("train") == "Ready"
    held = [claim.node for own in cluster.leadership.ledger.snapshot().own.values() for claim in own.values()]
    assert sorted(held) == ["n2", "n3"]
    await kueue.submit("more", {"worker": (3, 1)}, flavor="h100")
    await cluster.pause(1)
    assert (kueue.state("more"), cluster.free_cards()) == ("Rejected", 1)


async def test_an_answer_that_could_not_be_patched_is_patched_again(cluster: Led, kueue: Kueue) -> None:
    cluster.server.fail(Fault(status=500), when=is_answer)
    cluster.server.fail(Fault(done=True), when=is_answer)  # carried out, and the answer is lost
    await kueue.submit("train", TRAIN)
    await cluster.pause(10)
    assert (kueue.state("train"), claims(cluster)) == ("Ready", 5)
    assert cluster.records.count(Event.ADMISSION_FAILED) == 1


async def test_an_answer_to_a_workload_that_changed_meanwhile_is_dropped(cluster: Led, kueue: Kueue) -> None:
    cluster.server.slowness = lambda request: (1.0, 0.0) if is_answer(request) else (0.0, 0.0)
    await kueue.submit("train", TRAIN)
    await cluster.pause(0.5)
    kueue.evict("train")
    await cluster.pause(3)
    assert (kueue.state("train"), claims(cluster)) == ("Pending", 0)


async def test_a_new_leader_holds_nothing_and_the_pods_of_an_admitted_workload_start(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler
) -> None:
    kueue.makes_pods = False
    await kueue.submit("train", TRAIN)
    await kueue.run(1)
    await cluster.lead_again()
    assert (kueue.is_true("train", "Admitted"), claims(cluster)) == (True, 0)
    kueue.make_pods("train")
    await scheduler.run(3)
    assert (len(bound(cluster)), claims(cluster)) == (5, 0)


async def test_a_cluster_without_kueue_costs_one_list_call_a_minute_of_each_kind(cluster: Led) -> None:
    await cluster.leadership.end()
    kueues = [request for request in cluster.server.requests if "kueue" in request.path]
    cluster.server.fail(Fault(status=404), when=lambda request: "kueue" in request.path, times=1000)
    await cluster.begin()
    await cluster.pause(150)
    assert len([request for request in cluster.server.requests if "kueue" in request.path]) - len(kueues) == 9
    assert claims(cluster) == 0
    assert all(Claim.PLANNED not in own for own in cluster.leadership.ledger.snapshot().own.values())


@pytest.mark.parametrize("seed", range(6))
async def test_no_card_is_given_twice_and_nothing_stays_held_in_any_order_of_events(
    cluster: Led, kueue: Kueue, scheduler: KubeScheduler, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311  the same trouble each time
    names: list[str] = []
    for number in range(12):
        match dice.choice(("submit", "submit", "evict", "finish", "pod", "end", "fail", "lead")):
            case "submit":
                names.append(f"w{number}")
                await kueue.submit(names[-1], {"worker": (dice.randint(1, 4), dice.randint(1, 3))})
            case "evict" | "finish" as end if names:
                (kueue.evict if end == "evict" else kueue.finish)(dice.choice(names))
            case "pod":
                await cluster.put_pod(f"p{number}")
            case "end" if bound(cluster):
                await cluster.remove_pod(dice.choice(bound(cluster)))
            case "fail":
                cluster.server.fail(Fault(status=500, done=dice.random() < 0.5), when=is_answer)
            case "lead":
                await cluster.lead_again()
            case _:
                pass
        await run(kueue, scheduler, dice.choice((0.3, 2)))
        cards = [card for name in bound(cluster) for card in cluster.assigned(name)]
        assert len(cards) == len(set(cards))
    for name in names:
        kueue.evict(name)
    await cluster.pause(HELD_S + 5)
    assert claims(cluster) == 0
