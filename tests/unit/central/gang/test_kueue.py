"""Test Workloads of Kueue on a simulated cluster: central answers whether they fit, reserves their devices, and gives these to
their pods.

Kueue's side is played by tests/fakes/kueue.py.
"""

import asyncio
import random
from pathlib import Path

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
from tests.fakes.led import REFUSED, Led, play
from tests.unit.central.gang.stories import bound, claims, put_gang

TRAIN = {"ps": (1, 1), "worker": (4, 2)}  # nine cards


async def run(kueue: Kueue, scheduler: KubeScheduler, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(kueue.run(seconds))
        group.create_task(scheduler.run(seconds))


async def with_nine_cards(one: Led) -> Kueue:
    await one.report("n1", 8)
    await one.put_node("n2", 1)
    kueue = Kueue(one)
    await kueue.install()
    return kueue


def is_answer(request: Request) -> bool:
    return request.method == "PATCH" and "/workloads/" in request.path


def test_the_check_is_active_and_a_check_of_another_controller_is_not_touched(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = Kueue(one)
        await kueue.install("another.dev/checks")
        await kueue.submit("train", {"worker": (1, 1)})
        await one.pause(1)
        assert not [request for request in one.server.requests if request.method == "PATCH"]
        await kueue.install()
        await one.pause(1)
        (text,) = one.server.objects[ADMISSION_CHECKS.path(name=CHECK)]["status"]["conditions"]
        assert (text["type"], text["status"]) == ("Active", "True")
        assert len([request for request in one.server.requests if "/admissionchecks/" in request.path]) == 1

    play(story, tmp_path)


def test_a_workload_that_fits_starts_and_its_pods_use_up_what_was_held(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        await kueue.submit("train", TRAIN)
        await one.pause(1)
        assert (kueue.state("train"), claims(one)) == ("Ready", 5)
        assert one.free_cards("n1") + one.free_cards("n2") == 0
        await run(kueue, scheduler, 5)
        assert kueue.is_true("train", "Admitted")
        assert bound(one) == ["train-ps-0", "train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]
        assert (one.bound_to("train-ps-0"), claims(one)) == ("n2", 0)
        assert one.json("train-ps-0")["metadata"]["annotations"][WORKLOAD] == "uid-train/ps"
        await scheduler.end()

    play(story, tmp_path)


def test_no_other_pod_gets_the_room_before_the_pods_come_nor_before_they_are_bound(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        kueue.makes_pods = False
        await one.put_pod("other")
        await kueue.submit("train", TRAIN)
        await kueue.run(1)
        await scheduler.run(3)
        assert bound(one) == []
        kueue.make_pods("train", without=1)
        await scheduler.run(3)
        assert bound(one) == ["train-worker-0", "train-worker-1", "train-worker-2"]
        kueue.make_pods("train")
        await one.pause()
        assert scheduler.ask("other") == REFUSED
        await scheduler.run(3)
        assert len(bound(one)) == 5
        assert one.bound_to("other") == ""
        await scheduler.end()

    play(story, tmp_path)


def test_a_workload_without_room_is_sent_back_holds_nothing_and_lets_the_next_one_start(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        await one.put_pod("first")
        assert await one.schedule("first") == ""
        await kueue.submit("train", TRAIN)
        await one.pause(SETTLE_S + 2)
        assert (kueue.state("train"), kueue.entry("train")["requeueAfterSeconds"], claims(one)) == ("Retry", 30, 0)
        assert kueue.entry("train")["message"] == "there is no room for all of 5 pods now"
        await kueue.submit("small", {"worker": (4, 2)})
        await run(kueue, scheduler, 3)
        assert len(bound(one)) == 5
        for name in bound(one):
            await one.remove_pod(name)
        kueue.finish("small")
        await run(kueue, scheduler, 40)
        assert (kueue.waited["train"], len(bound(one)), claims(one)) == ([30], 5, 0)
        await scheduler.end()

    play(story, tmp_path)


def test_no_workload_is_sent_back_while_devices_come_back_that_were_just_given_up(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await one.put_pod("first")
        await one.schedule("first")
        await kueue.submit("train", TRAIN)
        await one.pause(SETTLE_S - 3)
        assert (kueue.state("train"), claims(one)) == ("Pending", 0)
        await one.remove_pod("first")
        await one.pause(2)
        assert (kueue.state("train"), claims(one)) == ("Ready", 5)

    play(story, tmp_path)


def test_a_workload_that_is_evicted_is_asked_about_when_it_has_quota_anew(tmp_path: Path) -> None:
    """Check that the Workload is not answered before its pods have ended: until then its quota is still reserved and its check
    is Pending, and an answer would remain valid for the next start."""

    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await kueue.submit("train", TRAIN)
        await one.pause(1)
        kueue.evict("train")
        await one.pause(SETTLE_S + 2)
        assert (kueue.state("train"), claims(one)) == ("Pending", 0)
        kueue.take_quota("train")
        await one.pause(1)
        assert (kueue.state("train"), claims(one)) == ("Pending", 0)
        kueue.reserve("train")
        await one.pause(1)
        assert (kueue.state("train"), claims(one)) == ("Ready", 5)

    play(story, tmp_path)


def test_a_workload_is_asked_about_ever_more_rarely(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await one.put_pod("first")
        await one.schedule("first")
        await kueue.submit("train", TRAIN)
        await kueue.run(1200)
        assert kueue.waited["train"] == [30, 60, 120, 240, 300, 300, 300]
        assert (len(list(filter(is_answer, one.server.requests))), claims(one)) == (7, 0)

    play(story, tmp_path)


def test_the_pause_has_a_bound_whatever_the_count(tmp_path: Path) -> None:
    assert [retry_s(count) for count in (-1, 0, 3, 4, 10**9)] == [30, 30, 240, 300, 300]


def test_room_for_pods_that_never_come_is_free_after_two_minutes(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        kueue.makes_pods = False
        await kueue.submit("train", TRAIN)
        await kueue.run(1)
        assert kueue.is_true("train", "Admitted")
        await one.pause(118)
        assert claims(one) == 5
        await one.pause(3)
        assert (claims(one), one.free_cards("n1"), kueue.state("train")) == (0, 8, "Ready")
        await one.put_pod("other")
        await scheduler.run(1)
        assert bound(one) == ["other"]
        await scheduler.end()

    play(story, tmp_path)


def test_room_that_a_pod_did_not_use_is_free_after_two_minutes_more(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await kueue.submit("train", TRAIN)
        await kueue.run(1)
        await one.pause(115)
        assert claims(one) == 5
        await one.pause(10)
        assert claims(one) == 0

    play(story, tmp_path)


def test_a_workload_larger_than_the_empty_cluster_is_rejected(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await one.put_pod("first")
        await one.schedule("first")
        await kueue.submit("huge", {"worker": (5, 2)})
        await one.pause(1)
        assert (kueue.state("huge"), claims(one)) == ("Rejected", 0)
        assert kueue.entry("huge")["message"] == "of 5 pods that start together, 4 would have room on empty nodes"
        await kueue.run(1)
        assert not kueue.json("huge")["spec"]["active"]

    play(story, tmp_path)


def test_no_workload_is_rejected_that_could_fit_if_everything_were_in_service(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await one.put_node("n3", 2, unhealthy="fell off the bus")
        await one.put_node("n4", 2, reconciled=False)
        await kueue.submit("large", {"worker": (6, 2)})
        await kueue.submit("huge", {"worker": (7, 2)})
        await one.pause(SETTLE_S + 2)
        assert (kueue.state("large"), kueue.state("huge")) == ("Retry", "Rejected")
        for name in ("large", "huge"):
            assert kueue.entry(name)["message"].endswith("; 1 nodes and 2 cards are out of service")

    play(story, tmp_path)


def test_a_malformed_template_is_rejected_in_words(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await kueue.submit("wrong", {"worker": (1, 1)}, annotations={GANG: "g"})
        await kueue.submit("many", {"worker": (5000, 1)})
        await one.pause(1)
        assert kueue.state("wrong") == kueue.state("many") == "Rejected"
        assert kueue.entry("wrong")["message"].startswith("pod set worker: cannot use lading.dev/gang: lading.dev/gang-min")
        assert kueue.entry("many")["message"] == "5000 pods with devices are too many; 4096 at most start together"

    play(story, tmp_path)


def test_a_workload_without_devices_passes_and_holds_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        await kueue.submit("plain", {"worker": (3, 0)})
        await one.pause(1)
        assert (kueue.state("plain"), claims(one)) == ("Ready", 0)
        assert "podSetUpdates" not in kueue.entry("plain")

    play(story, tmp_path)


def test_central_answers_when_all_other_checks_are_ready(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        kueue.checks = (CHECK, "provisioning")
        await kueue.submit("train", TRAIN)
        await kueue.run(30)
        assert (kueue.state("train"), claims(one)) == ("Pending", 0)
        kueue.say("train", "provisioning", "Ready")
        await one.pause(1)
        assert (kueue.state("train"), claims(one)) == ("Ready", 5)

    play(story, tmp_path)


def test_a_workload_that_loses_its_quota_or_ends_holds_nothing_any_more(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        for end in (kueue.evict, kueue.finish):
            await kueue.submit("train", TRAIN)
            await one.pause(1)
            assert claims(one) == 5
            end("train")
            await one.pause()
            assert claims(one) == 0
        await kueue.submit("train", TRAIN)
        await one.pause(1)
        await one.server.remove("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/train")
        await one.pause()
        assert claims(one) == 0

    play(story, tmp_path)


def test_workloads_are_answered_by_priority_then_by_age(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = Kueue(one)
        for name, priority, age in (("young", 0, 2), ("old", 0, 1), ("urgent", 9, 3)):
            await kueue.submit(name, {"worker": (1, 1)}, priority=priority, created=f"2026-11-21T00:00:0{age}Z")
        await one.report("n1", 2)
        await kueue.install()
        await one.pause(SETTLE_S + 2)
        assert [kueue.state(name) for name in ("urgent", "old", "young")] == ["Ready", "Ready", "Retry"]

    play(story, tmp_path)


def test_a_gang_of_a_workload_starts_in_its_room_before_an_older_gang(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = Kueue(one), KubeScheduler(one)
        await kueue.install()
        await one.report("n1", 4)
        await one.put_pod("first")
        await one.schedule("first")
        await put_gang(one, "older", 4)
        await scheduler.run(1)
        await kueue.submit("train", {"worker": (3, 1)}, annotations={GANG: "train", GANG_MIN: "3"})
        await kueue.run(0.5)
        await one.remove_pod("first")
        await run(kueue, scheduler, 5)
        assert bound(one) == ["train-worker-0", "train-worker-1", "train-worker-2"]
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


def test_a_launcher_without_devices_has_a_place_too(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        text = {GANG: "mpi", GANG_MIN: "launcher=1", GANG_ROLE: "launcher"}
        await kueue.submit("mpi", {"launcher": (1, 0)}, limits={RESOURCE_GANG_MEMBER: "1"}, annotations=text)
        await run(kueue, scheduler, 3)
        assert (kueue.state("mpi"), bound(one), claims(one)) == ("Ready", ["mpi-launcher-0"], 0)
        await scheduler.end()

    play(story, tmp_path)


def test_gated_pods_hold_nothing_and_start_when_kueue_opens_their_gates(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await one.report("n1", 2)
        names = ["a", "b"]
        group = {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-total-count": "2"}
        for name in names:
            made = pod(name, annotations=group)
            made["spec"]["schedulingGates"] = [{"name": GATE}]
            await one.server.put(pod_path(name), made)
        await scheduler.run(10)
        assert (bound(one), claims(one), one.free_cards(), scheduler.asked.total()) == ([], 0, 2, 0)
        assert one.sent("/status") == []
        for name in names:
            made = one.json(name)
            made["spec"]["schedulingGates"] = []
            await one.server.put(pod_path(name), made)
        await scheduler.run(3)
        assert bound(one) == names
        await scheduler.end()

    play(story, tmp_path)


def test_room_is_planned_on_the_nodes_of_the_flavor_and_of_the_selector(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2", 1, labels={"card": "h100", "pool": "a"})
        await one.put_node("n3", 1, labels={"card": "h100"})
        kueue = Kueue(one)
        await kueue.put_flavor("h100", {"card": "h100"})
        await kueue.install()
        await kueue.submit("train", {"worker": (2, 1)}, flavor="h100")
        await one.pause(1)
        assert kueue.state("train") == "Ready"
        held = [claim.node for own in one.leadership.ledger.snapshot().own.values() for claim in own.values()]
        assert sorted(held) == ["n2", "n3"]
        await kueue.submit("more", {"worker": (3, 1)}, flavor="h100")
        await one.pause(1)
        assert (kueue.state("more"), one.free_cards()) == ("Rejected", 1)

    play(story, tmp_path)


def test_an_answer_that_could_not_be_written_is_written_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        one.server.fail(Fault(status=500), when=is_answer)
        one.server.fail(Fault(done=True), when=is_answer)  # carried out, and the answer is lost
        await kueue.submit("train", TRAIN)
        await one.pause(10)
        assert (kueue.state("train"), claims(one)) == ("Ready", 5)
        assert one.records.count(Event.ADMISSION_FAILED) == 1

    play(story, tmp_path)


def test_an_answer_to_a_workload_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue = await with_nine_cards(one)
        one.server.slowness = lambda request: (1.0, 0.0) if is_answer(request) else (0.0, 0.0)
        await kueue.submit("train", TRAIN)
        await one.pause(0.5)
        kueue.evict("train")
        await one.pause(3)
        assert (kueue.state("train"), claims(one)) == ("Pending", 0)

    play(story, tmp_path)


def test_a_new_leader_holds_nothing_and_the_pods_of_an_admitted_workload_start(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        kueue.makes_pods = False
        await kueue.submit("train", TRAIN)
        await kueue.run(1)
        await one.leadership.end()
        await one.begin()
        assert (kueue.is_true("train", "Admitted"), claims(one)) == (True, 0)
        kueue.make_pods("train")
        await scheduler.run(3)
        assert (len(bound(one)), claims(one)) == (5, 0)
        await scheduler.end()

    play(story, tmp_path)


def test_a_cluster_without_kueue_costs_one_question_a_minute(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.leadership.end()
        kueues = [request for request in one.server.requests if "kueue" in request.path]
        one.server.fail(Fault(status=404), when=lambda request: "kueue" in request.path, times=1000)
        await one.begin()
        await one.pause(150)
        assert len([request for request in one.server.requests if "kueue" in request.path]) - len(kueues) == 9
        assert claims(one) == 0
        assert all(Claim.PLANNED not in own for own in one.leadership.ledger.snapshot().own.values())

    play(story, tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_in_any_order_no_card_is_given_twice_and_nothing_stays_held(seed: int, tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        dice = random.Random(seed)  # noqa: S311  the same trouble each time
        kueue, scheduler = await with_nine_cards(one), KubeScheduler(one)
        names: list[str] = []
        for number in range(12):
            match dice.choice(("submit", "submit", "evict", "finish", "pod", "end", "fail", "lead")):
                case "submit":
                    names.append(f"w{number}")
                    await kueue.submit(names[-1], {"worker": (dice.randint(1, 4), dice.randint(1, 3))})
                case "evict" | "finish" as end if names:
                    (kueue.evict if end == "evict" else kueue.finish)(dice.choice(names))
                case "pod":
                    await one.put_pod(f"p{number}")
                case "end" if bound(one):
                    await one.remove_pod(dice.choice(bound(one)))
                case "fail":
                    one.server.fail(Fault(status=500, done=dice.random() < 0.5), when=is_answer)
                case "lead":
                    await one.leadership.end()
                    await one.begin()
                case _:
                    pass
            await run(kueue, scheduler, dice.choice((0.3, 2)))
            cards = [card for name in bound(one) for card in one.assigned(name)]
            assert len(cards) == len(set(cards))
        for name in names:
            kueue.evict(name)
        await one.pause(HELD_S + 5)
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)
