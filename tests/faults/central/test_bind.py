"""Check each outcome of a Binding, and which devices are free afterwards, on the fake API server in simulated time."""

import asyncio
from pathlib import Path

import pytest

from central.controllers.binder import BIND_TIMEOUT_S, TRIES
from central.request.reasons import OfBinding
from central.state.counts import BindOutcome
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from tests.fakes.kube_objects import gpu_uuid, pod, pod_path
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, is_touch, play
from tests.fakes.signing import a_signer

LOST = Fault(hang=True)
LOST_ANSWER = Fault(hang=True, done=True)
LATE_S = BIND_TIMEOUT_S + 2.0  # the sender has given up by then


def reserved(one: Led) -> int:
    return len(one.leadership.ledger.reservations())


def test_one_binding_carries_everything(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        version = one.json("a")["metadata"]["resourceVersion"]
        assert await one.schedule("a") == ""
        (binding,) = one.sent("/binding")
        metadata = binding.body["metadata"]
        assert (metadata["uid"], metadata["resourceVersion"]) == (one.uid("a"), version)
        assert set(metadata["annotations"]) == {ASSIGNMENT}
        assert one.assigned("a") == [gpu_uuid("n1", 0)]
        await one.pause()
        assert (reserved(one), one.free_cards(), one.records.count(Event.BIND_CONFIRMED)) == (0, 0, 1)

    play(story, tmp_path)


def test_asked_again_for_a_bound_pod_nothing_is_sent(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        assert await one.bind("a", "n1") == ""
        assert await one.bind("a", "n1") == ""
        await one.pause()
        assert await one.bind("a", "n1") == ""
        assert len(one.sent("/binding")) == 1

    play(story, tmp_path)


def test_asked_twice_at_once_both_get_the_one_answer(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2")
        await one.put_pod("a")
        one.server.slowness = lambda request: (0.2, 0.2) if is_binding(request) else (0.0, 0.0)
        first, second, elsewhere = await asyncio.gather(one.bind("a", "n1"), one.bind("a", "n1"), one.bind("a", "n2"))
        assert (first, second, len(one.sent("/binding"))) == ("", "", 1)
        assert "n1" in elsewhere  # not a word of success about a node where it is not

    play(story, tmp_path)


def test_a_caller_that_gives_up_changes_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.slowness = lambda request: (1.0, 1.0) if is_binding(request) else (0.0, 0.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await one.bind("a", "n1")
        assert await one.bind("a", "n1") == ""
        assert (one.bound_to("a"), len(one.sent("/binding"))) == ("n1", 1)

    play(story, tmp_path)


# A definite no


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
def test_a_refusal_releases(tmp_path: Path, status: int) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=status), when=is_binding)
        assert OfBinding.BINDING_REFUSED in await one.bind("a", "n1")
        assert (reserved(one), one.free_cards(), one.sent("/status")) == (0, 1, [])
        assert await one.schedule("a") == ""
        assert one.leadership.scheduler.counts.bound == {BindOutcome.REFUSED: 1, BindOutcome.BOUND: 1}

    play(story, tmp_path)


def test_an_api_server_that_is_away_was_not_reached(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        uid = one.uid("a")
        await one.server.close()
        assert await one.leadership.bind(uid, "n1") != ""
        assert reserved(one) == 0

    play(story, tmp_path)


def test_a_pod_that_someone_else_bound(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.filter("a")
        one.server.objects[pod_path("a")] = {**(result := one.json("a")), "spec": {**result["spec"], "nodeName": "n7"}}
        assert "n7" in await one.bind("a", "n1")
        assert reserved(one) == 0

    play(story, tmp_path)


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name", "being deleted"])
def test_a_pod_that_is_not_there_any_more(tmp_path: Path, meanwhile: str) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        uid = one.uid("a")
        result = one.json("a")
        if meanwhile == "gone":
            del one.server.objects[pod_path("a")]  # and no watch has said so
        elif meanwhile == "another of its name":
            other = {"uid": "another", "resourceVersion": "999"}
            one.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **other}}
        else:
            ending = {"deletionTimestamp": "2026-11-21T00:00:00Z", "resourceVersion": "999"}
            one.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
        assert await one.leadership.bind(uid, "n1") != ""
        assert (reserved(one), len(one.sent("/binding"))) == (0, 1)

    play(story, tmp_path)


def test_a_pod_that_changed_is_bound_with_its_new_version(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        result = one.json("a")
        one.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], "resourceVersion": "999"}}
        assert await one.bind("a", "n1") == ""
        versions = [binding.body["metadata"]["resourceVersion"] for binding in one.sent("/binding")]
        assert versions == [result["metadata"]["resourceVersion"], "999"]

    play(story, tmp_path)


def test_a_conflict_without_a_change_is_not_tried_for_ever(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=409, reason="Conflict"), when=is_binding, times=2 * TRIES)
        assert await one.bind("a", "n1") != ""
        assert (len(one.sent("/binding")), reserved(one)) == (1, 0)

    play(story, tmp_path)


def test_a_pod_that_changes_all_the_time_is_given_up_after_some_tries(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        uid = one.uid("a")
        binding = asyncio.create_task(one.leadership.bind(uid, "n1"))
        one.server.slowness = lambda request: (0.1, 0.0) if is_binding(request) else (0.0, 0.0)
        for number in range(16):
            await one.server.put(pod_path("a"), pod("a", annotations={"n": str(number)}))
            await one.pause(0.05)
        assert await binding != ""
        assert (len(one.sent("/binding")), reserved(one)) == (TRIES, 0)

    play(story, tmp_path)


def test_a_proxy_that_sent_our_binding_twice(tmp_path: Path) -> None:
    """Check a Binding that a proxy sent twice: the second answer is a conflict, though the pod has central's assignment."""

    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=409, reason="Conflict", done=True), when=is_binding)
        one.server.slowness = lambda request: (0.0, 0.5) if is_binding(request) else (0.0, 0.0)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(0.1)
        result = one.json("a")
        ending = {"deletionTimestamp": "2026-11-21T00:00:00Z"}
        one.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
        assert await binding == ""
        assert one.free_cards() == 0

    play(story, tmp_path)


# No one knows


@pytest.mark.parametrize("fault", [LOST_ANSWER, Fault(status=500, done=True), Fault(status=504, done=True), Fault(done=True)])
def test_it_had_succeeded(tmp_path: Path, fault: Fault) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(fault, when=is_binding)
        assert await one.bind("a", "n1") != ""
        assert one.free_cards() == 0
        await one.pause(5)
        assert await one.bind("a", "n1") == ""
        assert (one.free_cards(), reserved(one), one.assigned("a")) == (0, 0, [gpu_uuid("n1", 0)])
        assert len(one.sent("/binding")) == 1
        assert one.leadership.scheduler.counts.bound[BindOutcome.UNCLEAR] == 1

    play(story, tmp_path)


@pytest.mark.parametrize("fault", [LOST, Fault(status=500), Fault(status=503), Fault()])
def test_it_was_lost(tmp_path: Path, fault: Fault) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(fault, when=is_binding)
        one.server.fail(Fault(status=500), when=is_touch, times=3)
        assert OfBinding.BINDING_UNCLEAR in await one.bind("a", "n1")
        assert (reserved(one), one.free_cards(), one.leadership.unclear_bindings) == (1, 0, 1)
        assert OfBinding.BINDING_UNCLEAR in await one.bind("a", "n1")  # it may be under way
        assert len(one.sent("/binding")) == 1
        await one.pause(60)
        assert (reserved(one), one.free_cards(), len(one.sent("/status"))) == (0, 1, 4)
        assert await one.schedule("a") == ""
        outcomes = one.leadership.scheduler.counts.bound
        assert (outcomes[BindOutcome.UNCLEAR], outcomes[BindOutcome.FOUND_NOT_BOUND], outcomes[BindOutcome.BOUND]) == (1, 1, 1)
        assert one.leadership.unclear_bindings == 0

    play(story, tmp_path)


def test_a_binding_that_arrives_after_the_touch_fails(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        one.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
        assert await one.bind("a", "n1") != ""
        await one.pause(1)  # settled: the pod was touched, and is not bound
        assert (reserved(one), one.server.late) == (0, [])
        one.leadership.ledger.claims.forget_prediction(one.uid("a"))
        assert await one.schedule("b") == ""
        await one.pause(LATE_S)
        assert one.server.late == [409]
        assert (one.bound_to("a"), one.bound_to("b")) == ("", "n1")

    play(story, tmp_path)


def test_a_binding_that_arrives_before_the_touch_is_found(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
        one.server.slowness = lambda request: (LATE_S, 0.0) if is_touch(request) else (0.0, 0.0)
        assert await one.bind("a", "n1") != ""
        await one.pause(60)
        assert one.server.late == [200]
        assert (reserved(one), one.free_cards(), one.bound_to("a")) == (0, 0, "n1")

    play(story, tmp_path)


def test_until_it_is_known_the_devices_are_nobodys(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        one.server.fail(Fault(status=500), when=is_binding)
        one.server.fail(Fault(status=403), when=is_touch, times=1000)
        assert await one.bind("a", "n1") != ""
        await one.pause(600)
        assert await one.schedule("b") == REFUSED
        await one.remove_pod("a")
        assert await one.schedule("b") == ""
        touches = len(one.sent(pod_path("a") + "/status"))
        await one.pause(600)
        assert len(one.sent(pod_path("a") + "/status")) <= touches + 1  # the watch's word ends it too

    play(story, tmp_path)


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name"])
def test_the_pod_ended_before_it_was_known(tmp_path: Path, meanwhile: str) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(LOST, when=is_binding)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(1)
        if meanwhile == "gone":
            del one.server.objects[pod_path("a")]
        else:
            one.server.objects[pod_path("a")] = {
                **(result := one.json("a")),
                "metadata": {**result["metadata"], "uid": "another"},
            }
        assert await binding != ""
        await one.pause(1)
        assert (reserved(one), one.free_cards()) == (0, 1)

    play(story, tmp_path)


def test_an_answer_that_is_not_kubernetes(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=500, body=b"<html>"), when=is_binding)
        assert await one.bind("a", "n1") != ""
        await one.pause(1)
        assert await one.schedule("a") == ""

    play(story, tmp_path)


# Leading


def test_who_leads_no_more_sends_no_binding(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.leads = False
        assert await one.bind("a", "n1") != ""
        assert (one.sent("/binding"), reserved(one)) == ([], 0)

    play(story, tmp_path)


def test_lost_between_two_tries(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=409, reason="Conflict"), when=is_binding)
        one.server.slowness = lambda request: (0.1, 0.1) if is_binding(request) else (0.0, 0.0)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(0.05)
        await one.server.put(pod_path("a"), pod("a", annotations={"changed": "yes"}))
        one.leads = False
        assert await binding != ""
        assert (len(one.sent("/binding")), one.bound_to("a")) == (1, "")

    play(story, tmp_path)


def test_a_term_that_is_over_sends_nothing_though_the_process_leads_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.leadership.stop()
        assert await one.bind("a", "n1") != ""
        assert one.sent("/binding") == []

    play(story, tmp_path)


def test_a_term_that_ends_while_it_binds(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.server.fail(LOST, when=is_binding)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(1)
        assert not await one.leadership.end()  # the outcome of the Binding stays unknown
        assert await binding == OfBinding.NOT_LEADING.shown
        await one.pause(60)
        assert one.sent("/status") == []  # nothing is written by a leadership that is over

    play(story, tmp_path)


def test_a_term_that_ends_with_an_outcome_open(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        assert await one.bind("a", "n1") == ""
        await one.pause()
        await one.put_pod("b")
        assert await one.make_leadership().end()
        await one.put_node("n2")
        one.server.fail(Fault(status=500), when=is_binding)
        one.server.fail(Fault(status=500), when=is_touch, times=9)
        assert await one.bind("b", "n2") != ""
        assert not await one.leadership.end()

    play(story, tmp_path)


# Killed, and begun anew


@pytest.mark.parametrize("carried_out", [False, True])
def test_killed_while_it_binds(tmp_path: Path, carried_out: bool) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        one.server.fail(LOST_ANSWER if carried_out else LOST, when=is_binding)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(1)
        await one.leadership.end()
        await binding
        await one.begin()
        assert reserved(one) == 0
        assert (await one.schedule("b") == "") is not carried_out
        assert await one.schedule("a") == ("" if carried_out else REFUSED)
        assert one.bound_to("a") == ("n1" if carried_out else "")
        assert one.assigned("a") + one.assigned("b") == [gpu_uuid("n1", 0)]

    play(story, tmp_path)


def test_killed_between_reserve_and_binding(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        one.filter("a")
        one.leadership.scheduler.reserve(one.uid("a"), "n1")
        await one.leadership.end()
        await one.begin()
        assert await one.schedule("b") == ""
        assert await one.schedule("a") == REFUSED

    play(story, tmp_path)


def test_the_signature_is_over_the_exact_text(tmp_path: Path) -> None:
    signer = a_signer()

    async def story(one: Led) -> None:
        await one.put_pod("a")
        assert await one.schedule("a") == ""
        annotations = one.json("a")["metadata"]["annotations"]
        assert signer.accepts(annotations[ASSIGNMENT], annotations[ASSIGNMENT_SIGNATURE])
        assert not signer.accepts(annotations[ASSIGNMENT] + " ", annotations[ASSIGNMENT_SIGNATURE])

    play(story, tmp_path, signer)
