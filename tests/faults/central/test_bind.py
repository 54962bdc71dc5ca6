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
from tests.fakes.led import REFUSED, Led, is_binding, is_touch, led
from tests.fakes.signing import a_signer

pytestmark = pytest.mark.simulated_time

LOST = Fault(hang=True)
LOST_ANSWER = Fault(hang=True, done=True)
LATE_S = BIND_TIMEOUT_S + 2.0  # the sender has given up by then


def reserved(central: Led) -> int:
    return len(central.leadership.ledger.reservations())


async def test_one_binding_carries_everything(central: Led) -> None:
    await central.put_pod("a")
    version = central.json("a")["metadata"]["resourceVersion"]
    assert await central.schedule("a") == ""
    (binding,) = central.sent("/binding")
    metadata = binding.body["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == (central.uid("a"), version)
    assert set(metadata["annotations"]) == {ASSIGNMENT}
    assert central.assigned("a") == [gpu_uuid("n1", 0)]
    await central.pause()
    assert (reserved(central), central.free_cards(), central.records.count(Event.BIND_CONFIRMED)) == (0, 0, 1)


async def test_asked_again_for_a_bound_pod_nothing_is_sent(central: Led) -> None:
    await central.put_pod("a")
    assert await central.bind("a", "n1") == ""
    assert await central.bind("a", "n1") == ""
    await central.pause()
    assert await central.bind("a", "n1") == ""
    assert len(central.sent("/binding")) == 1


async def test_asked_twice_at_once_both_get_the_one_answer(central: Led) -> None:
    await central.put_node("n2")
    await central.put_pod("a")
    central.server.slowness = lambda request: (0.2, 0.2) if is_binding(request) else (0.0, 0.0)
    first, second, elsewhere = await asyncio.gather(central.bind("a", "n1"), central.bind("a", "n1"), central.bind("a", "n2"))
    assert (first, second, len(central.sent("/binding"))) == ("", "", 1)
    assert "n1" in elsewhere  # not a word of success about a node where it is not


async def test_a_caller_that_gives_up_changes_nothing(central: Led) -> None:
    await central.put_pod("a")
    central.server.slowness = lambda request: (1.0, 1.0) if is_binding(request) else (0.0, 0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await central.bind("a", "n1")
    assert await central.bind("a", "n1") == ""
    assert (central.bound_to("a"), len(central.sent("/binding"))) == ("n1", 1)


# A definite no


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
async def test_a_refusal_releases(status: int, central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(Fault(status=status), when=is_binding)
    assert OfBinding.BINDING_REFUSED in await central.bind("a", "n1")
    assert (reserved(central), central.free_cards(), central.sent("/status")) == (0, 1, [])
    assert await central.schedule("a") == ""
    assert central.leadership.scheduler.counts.bound == {BindOutcome.REFUSED: 1, BindOutcome.BOUND: 1}


async def test_an_api_server_that_is_away_was_not_reached(central: Led) -> None:
    await central.put_pod("a")
    uid = central.uid("a")
    await central.server.close()
    assert await central.leadership.bind(uid, "n1") != ""
    assert reserved(central) == 0


async def test_a_pod_that_another_client_bound_is_reported_with_its_node(central: Led) -> None:
    await central.put_pod("a")
    central.filter("a")
    central.server.objects[pod_path("a")] = {**(result := central.json("a")), "spec": {**result["spec"], "nodeName": "n7"}}
    assert "n7" in await central.bind("a", "n1")
    assert reserved(central) == 0


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name", "being deleted"])
async def test_a_pod_that_ended_or_was_replaced_is_not_bound(meanwhile: str, central: Led) -> None:
    await central.put_pod("a")
    uid = central.uid("a")
    result = central.json("a")
    if meanwhile == "gone":
        del central.server.objects[pod_path("a")]  # and no watch has said so
    elif meanwhile == "another of its name":
        other = {"uid": "another", "resourceVersion": "999"}
        central.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **other}}
    else:
        ending = {"deletionTimestamp": "2026-11-21T00:00:00Z", "resourceVersion": "999"}
        central.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
    assert await central.leadership.bind(uid, "n1") != ""
    assert (reserved(central), len(central.sent("/binding"))) == (0, 1)


async def test_a_pod_that_changed_is_bound_with_its_new_version(central: Led) -> None:
    await central.put_pod("a")
    result = central.json("a")
    central.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], "resourceVersion": "999"}}
    assert await central.bind("a", "n1") == ""
    versions = [binding.body["metadata"]["resourceVersion"] for binding in central.sent("/binding")]
    assert versions == [result["metadata"]["resourceVersion"], "999"]


async def test_a_conflict_without_a_change_is_not_tried_for_ever(central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(Fault(status=409, reason="Conflict"), when=is_binding, times=2 * TRIES)
    assert await central.bind("a", "n1") != ""
    assert (len(central.sent("/binding")), reserved(central)) == (1, 0)


async def test_a_pod_that_changes_all_the_time_is_given_up_after_some_tries(central: Led) -> None:
    await central.put_pod("a")
    uid = central.uid("a")
    binding = asyncio.create_task(central.leadership.bind(uid, "n1"))
    central.server.slowness = lambda request: (0.1, 0.0) if is_binding(request) else (0.0, 0.0)
    for number in range(16):
        await central.server.put(pod_path("a"), pod("a", annotations={"n": str(number)}))
        await central.pause(0.05)
    assert await binding != ""
    assert (len(central.sent("/binding")), reserved(central)) == (TRIES, 0)


async def test_a_conflict_with_our_own_assignment_is_success(central: Led) -> None:
    """Check a Binding that a proxy sent twice: the second answer is a conflict, though the pod has central's assignment."""
    await central.put_pod("a")
    central.server.fail(Fault(status=409, reason="Conflict", done=True), when=is_binding)
    central.server.slowness = lambda request: (0.0, 0.5) if is_binding(request) else (0.0, 0.0)
    binding = asyncio.create_task(central.bind("a", "n1"))
    await central.pause(0.1)
    result = central.json("a")
    ending = {"deletionTimestamp": "2026-11-21T00:00:00Z"}
    central.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
    assert await binding == ""
    assert central.free_cards() == 0


# No one knows


@pytest.mark.parametrize("fault", [LOST_ANSWER, Fault(status=500, done=True), Fault(status=504, done=True), Fault(done=True)])
async def test_a_binding_that_succeeded_without_an_answer_is_found(fault: Fault, central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(fault, when=is_binding)
    assert await central.bind("a", "n1") != ""
    assert central.free_cards() == 0
    await central.pause(5)
    assert await central.bind("a", "n1") == ""
    assert (central.free_cards(), reserved(central), central.assigned("a")) == (0, 0, [gpu_uuid("n1", 0)])
    assert len(central.sent("/binding")) == 1
    assert central.leadership.scheduler.counts.bound[BindOutcome.UNCLEAR] == 1


@pytest.mark.parametrize("fault", [LOST, Fault(status=500), Fault(status=503), Fault()])
async def test_the_devices_of_a_lost_binding_are_free_once_the_outcome_is_known(fault: Fault, central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(fault, when=is_binding)
    central.server.fail(Fault(status=500), when=is_touch, times=3)
    assert OfBinding.BINDING_UNCLEAR in await central.bind("a", "n1")
    assert (reserved(central), central.free_cards(), central.leadership.unclear_bindings) == (1, 0, 1)
    assert OfBinding.BINDING_UNCLEAR in await central.bind("a", "n1")  # it may be under way
    assert len(central.sent("/binding")) == 1
    await central.pause(60)
    assert (reserved(central), central.free_cards(), len(central.sent("/status"))) == (0, 1, 4)
    assert await central.schedule("a") == ""
    outcomes = central.leadership.scheduler.counts.bound
    assert (outcomes[BindOutcome.UNCLEAR], outcomes[BindOutcome.FOUND_NOT_BOUND], outcomes[BindOutcome.BOUND]) == (1, 1, 1)
    assert central.leadership.unclear_bindings == 0


async def test_a_binding_that_arrives_after_the_touch_fails(central: Led) -> None:
    await central.put_pod("a")
    await central.put_pod("b")
    central.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
    assert await central.bind("a", "n1") != ""
    await central.pause(1)  # settled: the pod was touched, and is not bound
    assert (reserved(central), central.server.late) == (0, [])
    central.leadership.ledger.claims.forget_prediction(central.uid("a"))
    assert await central.schedule("b") == ""
    await central.pause(LATE_S)
    assert central.server.late == [409]
    assert (central.bound_to("a"), central.bound_to("b")) == ("", "n1")


async def test_a_binding_that_arrives_before_the_touch_is_found(central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
    central.server.slowness = lambda request: (LATE_S, 0.0) if is_touch(request) else (0.0, 0.0)
    assert await central.bind("a", "n1") != ""
    await central.pause(60)
    assert central.server.late == [200]
    assert (reserved(central), central.free_cards(), central.bound_to("a")) == (0, 0, "n1")


async def test_devices_of_an_unclear_binding_are_given_to_no_other_pod(central: Led) -> None:
    await central.put_pod("a")
    await central.put_pod("b")
    central.server.fail(Fault(status=500), when=is_binding)
    central.server.fail(Fault(status=403), when=is_touch, times=1000)
    assert await central.bind("a", "n1") != ""
    await central.pause(600)
    assert await central.schedule("b") == REFUSED
    await central.remove_pod("a")
    assert await central.schedule("b") == ""
    touches = len(central.sent(pod_path("a") + "/status"))
    await central.pause(600)
    assert len(central.sent(pod_path("a") + "/status")) <= touches + 1  # the watch's word ends it too


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name"])
async def test_devices_are_free_if_the_pod_ended_before_the_outcome_was_known(meanwhile: str, central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(LOST, when=is_binding)
    binding = asyncio.create_task(central.bind("a", "n1"))
    await central.pause(1)
    if meanwhile == "gone":
        del central.server.objects[pod_path("a")]
    else:
        central.server.objects[pod_path("a")] = {
            **(result := central.json("a")),
            "metadata": {**result["metadata"], "uid": "another"},
        }
    assert await binding != ""
    await central.pause(1)
    assert (reserved(central), central.free_cards()) == (0, 1)


async def test_an_answer_that_is_no_kubernetes_status_is_unclear(central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(Fault(status=500, body=b"<html>"), when=is_binding)
    assert await central.bind("a", "n1") != ""
    await central.pause(1)
    assert await central.schedule("a") == ""


# Leading


async def test_a_replica_that_does_not_lead_sends_no_binding(central: Led) -> None:
    await central.put_pod("a")
    central.leads = False
    assert await central.bind("a", "n1") != ""
    assert (central.sent("/binding"), reserved(central)) == ([], 0)


async def test_leadership_that_is_lost_between_two_attempts_sends_no_second_binding(central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(Fault(status=409, reason="Conflict"), when=is_binding)
    central.server.slowness = lambda request: (0.1, 0.1) if is_binding(request) else (0.0, 0.0)
    binding = asyncio.create_task(central.bind("a", "n1"))
    await central.pause(0.05)
    await central.server.put(pod_path("a"), pod("a", annotations={"changed": "yes"}))
    central.leads = False
    assert await binding != ""
    assert (len(central.sent("/binding")), central.bound_to("a")) == (1, "")


async def test_a_leadership_that_ended_sends_nothing_though_the_process_leads_again(central: Led) -> None:
    await central.put_pod("a")
    central.leadership.stop()
    assert await central.bind("a", "n1") != ""
    assert central.sent("/binding") == []


async def test_a_leadership_that_ends_during_a_binding_writes_nothing_more(central: Led) -> None:
    await central.put_pod("a")
    central.server.fail(LOST, when=is_binding)
    binding = asyncio.create_task(central.bind("a", "n1"))
    await central.pause(1)
    assert not await central.leadership.end()  # the outcome of the Binding stays unknown
    assert await binding == OfBinding.NOT_LEADING.shown
    await central.pause(60)
    assert central.sent("/status") == []  # nothing is written by a leadership that is over


async def test_a_leadership_reports_at_its_end_whether_an_outcome_is_unknown(central: Led) -> None:
    await central.put_pod("a")
    assert await central.bind("a", "n1") == ""
    await central.pause()
    await central.put_pod("b")
    assert await central.make_leadership().end()
    await central.put_node("n2")
    central.server.fail(Fault(status=500), when=is_binding)
    central.server.fail(Fault(status=500), when=is_touch, times=9)
    assert await central.bind("b", "n2") != ""
    assert not await central.leadership.end()


# Killed, and begun anew


@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_leader_killed_during_a_binding_assigns_no_card_twice(carried_out: bool, central: Led) -> None:
    await central.put_pod("a")
    await central.put_pod("b")
    central.server.fail(LOST_ANSWER if carried_out else LOST, when=is_binding)
    binding = asyncio.create_task(central.bind("a", "n1"))
    await central.pause(1)
    await central.leadership.end()
    await binding
    await central.begin()
    assert reserved(central) == 0
    assert (await central.schedule("b") == "") is not carried_out
    assert await central.schedule("a") == ("" if carried_out else REFUSED)
    assert central.bound_to("a") == ("n1" if carried_out else "")
    assert central.assigned("a") + central.assigned("b") == [gpu_uuid("n1", 0)]


async def test_a_leader_killed_between_reserve_and_binding_reserves_nothing(central: Led) -> None:
    await central.put_pod("a")
    await central.put_pod("b")
    central.filter("a")
    central.leadership.scheduler.reserve(central.uid("a"), "n1")
    await central.leadership.end()
    await central.begin()
    assert await central.schedule("b") == ""
    assert await central.schedule("a") == REFUSED


async def test_the_signature_is_over_the_exact_text(tmp_path: Path) -> None:
    signer = a_signer()
    async with led(tmp_path, signer) as central:
        await central.put_pod("a")
        assert await central.schedule("a") == ""
        annotations = central.json("a")["metadata"]["annotations"]
        assert signer.accepts(annotations[ASSIGNMENT], annotations[ASSIGNMENT_SIGNATURE])
        assert not signer.accepts(annotations[ASSIGNMENT] + " ", annotations[ASSIGNMENT_SIGNATURE])
