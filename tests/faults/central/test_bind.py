"""Check each outcome of a Binding, and which devices are free afterwards, on the fake API server in simulated time."""

import asyncio

import pytest

from central.controllers.binder import BIND_TIMEOUT_S, TRIES
from central.request.reasons import OfBinding
from central.state.counts import BindOutcome
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from tests.fakes.kube_objects import gpu_uuid, pod, pod_path
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, is_touch
from tests.fakes.signing import a_signer

pytestmark = pytest.mark.simulated_time

LOST = Fault(hang=True)
LOST_ANSWER = Fault(hang=True, done=True)
LATE_S = BIND_TIMEOUT_S + 2.0  # the sender has given up by then


def reserved(cluster: Led) -> int:
    return len(cluster.leadership.ledger.reservations())


async def test_one_binding_carries_everything(cluster: Led) -> None:
    await cluster.put_pod("a")
    version = cluster.json("a")["metadata"]["resourceVersion"]
    assert await cluster.schedule("a") == ""
    (binding,) = cluster.sent("/binding")
    metadata = binding.body["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == (cluster.uid("a"), version)
    assert set(metadata["annotations"]) == {ASSIGNMENT}
    assert cluster.assigned("a") == [gpu_uuid("n1", 0)]
    await cluster.pause()
    assert (reserved(cluster), cluster.free_cards(), cluster.records.count(Event.BIND_CONFIRMED)) == (0, 0, 1)


async def test_asked_again_for_a_bound_pod_nothing_is_sent(cluster: Led) -> None:
    await cluster.put_pod("a")
    assert await cluster.bind("a", "n1") == ""
    assert await cluster.bind("a", "n1") == ""
    await cluster.pause()
    assert await cluster.bind("a", "n1") == ""
    assert len(cluster.sent("/binding")) == 1


async def test_asked_twice_at_once_both_get_the_one_answer(cluster: Led) -> None:
    await cluster.put_node("n2")
    await cluster.put_pod("a")
    cluster.server.slowness = lambda request: (0.2, 0.2) if is_binding(request) else (0.0, 0.0)
    first, second, elsewhere = await asyncio.gather(cluster.bind("a", "n1"), cluster.bind("a", "n1"), cluster.bind("a", "n2"))
    assert (first, second, len(cluster.sent("/binding"))) == ("", "", 1)
    assert "n1" in elsewhere  # not a word of success about a node where it is not


async def test_a_caller_that_gives_up_changes_nothing(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.slowness = lambda request: (1.0, 1.0) if is_binding(request) else (0.0, 0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await cluster.bind("a", "n1")
    assert await cluster.bind("a", "n1") == ""
    assert (cluster.bound_to("a"), len(cluster.sent("/binding"))) == ("n1", 1)


# A definite no


@pytest.mark.parametrize("status", [400, 403, 404, 422, 429])
async def test_a_refusal_releases(cluster: Led, status: int) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=status), when=is_binding)
    assert OfBinding.BINDING_REFUSED in await cluster.bind("a", "n1")
    assert (reserved(cluster), cluster.free_cards(), cluster.sent("/status")) == (0, 1, [])
    assert await cluster.schedule("a") == ""
    assert cluster.leadership.scheduler.counts.bound == {BindOutcome.REFUSED: 1, BindOutcome.BOUND: 1}


async def test_an_api_server_that_is_away_was_not_reached(cluster: Led) -> None:
    await cluster.put_pod("a")
    uid = cluster.uid("a")
    await cluster.server.close()
    assert await cluster.leadership.bind(uid, "n1") != ""
    assert reserved(cluster) == 0


async def test_a_pod_that_someone_else_bound(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.filter("a")
    cluster.server.objects[pod_path("a")] = {**(result := cluster.json("a")), "spec": {**result["spec"], "nodeName": "n7"}}
    assert "n7" in await cluster.bind("a", "n1")
    assert reserved(cluster) == 0


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name", "being deleted"])
async def test_a_pod_that_is_not_there_any_more(cluster: Led, meanwhile: str) -> None:
    await cluster.put_pod("a")
    uid = cluster.uid("a")
    result = cluster.json("a")
    if meanwhile == "gone":
        del cluster.server.objects[pod_path("a")]  # and no watch has said so
    elif meanwhile == "another of its name":
        other = {"uid": "another", "resourceVersion": "999"}
        cluster.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **other}}
    else:
        ending = {"deletionTimestamp": "2026-11-21T00:00:00Z", "resourceVersion": "999"}
        cluster.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
    assert await cluster.leadership.bind(uid, "n1") != ""
    assert (reserved(cluster), len(cluster.sent("/binding"))) == (0, 1)


async def test_a_pod_that_changed_is_bound_with_its_new_version(cluster: Led) -> None:
    await cluster.put_pod("a")
    result = cluster.json("a")
    cluster.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], "resourceVersion": "999"}}
    assert await cluster.bind("a", "n1") == ""
    versions = [binding.body["metadata"]["resourceVersion"] for binding in cluster.sent("/binding")]
    assert versions == [result["metadata"]["resourceVersion"], "999"]


async def test_a_conflict_without_a_change_is_not_tried_for_ever(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=409, reason="Conflict"), when=is_binding, times=2 * TRIES)
    assert await cluster.bind("a", "n1") != ""
    assert (len(cluster.sent("/binding")), reserved(cluster)) == (1, 0)


async def test_a_pod_that_changes_all_the_time_is_given_up_after_some_tries(cluster: Led) -> None:
    await cluster.put_pod("a")
    uid = cluster.uid("a")
    binding = asyncio.create_task(cluster.leadership.bind(uid, "n1"))
    cluster.server.slowness = lambda request: (0.1, 0.0) if is_binding(request) else (0.0, 0.0)
    for number in range(16):
        await cluster.server.put(pod_path("a"), pod("a", annotations={"n": str(number)}))
        await cluster.pause(0.05)
    assert await binding != ""
    assert (len(cluster.sent("/binding")), reserved(cluster)) == (TRIES, 0)


async def test_a_proxy_that_sent_our_binding_twice(cluster: Led) -> None:
    """Check a Binding that a proxy sent twice: the second answer is a conflict, though the pod has central's assignment."""
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=409, reason="Conflict", done=True), when=is_binding)
    cluster.server.slowness = lambda request: (0.0, 0.5) if is_binding(request) else (0.0, 0.0)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(0.1)
    result = cluster.json("a")
    ending = {"deletionTimestamp": "2026-11-21T00:00:00Z"}
    cluster.server.objects[pod_path("a")] = {**result, "metadata": {**result["metadata"], **ending}}
    assert await binding == ""
    assert cluster.free_cards() == 0


# No one knows


@pytest.mark.parametrize("fault", [LOST_ANSWER, Fault(status=500, done=True), Fault(status=504, done=True), Fault(done=True)])
async def test_it_had_succeeded(cluster: Led, fault: Fault) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(fault, when=is_binding)
    assert await cluster.bind("a", "n1") != ""
    assert cluster.free_cards() == 0
    await cluster.pause(5)
    assert await cluster.bind("a", "n1") == ""
    assert (cluster.free_cards(), reserved(cluster), cluster.assigned("a")) == (0, 0, [gpu_uuid("n1", 0)])
    assert len(cluster.sent("/binding")) == 1
    assert cluster.leadership.scheduler.counts.bound[BindOutcome.UNCLEAR] == 1


@pytest.mark.parametrize("fault", [LOST, Fault(status=500), Fault(status=503), Fault()])
async def test_it_was_lost(cluster: Led, fault: Fault) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(fault, when=is_binding)
    cluster.server.fail(Fault(status=500), when=is_touch, times=3)
    assert OfBinding.BINDING_UNCLEAR in await cluster.bind("a", "n1")
    assert (reserved(cluster), cluster.free_cards(), cluster.leadership.unclear_bindings) == (1, 0, 1)
    assert OfBinding.BINDING_UNCLEAR in await cluster.bind("a", "n1")  # it may be under way
    assert len(cluster.sent("/binding")) == 1
    await cluster.pause(60)
    assert (reserved(cluster), cluster.free_cards(), len(cluster.sent("/status"))) == (0, 1, 4)
    assert await cluster.schedule("a") == ""
    outcomes = cluster.leadership.scheduler.counts.bound
    assert (outcomes[BindOutcome.UNCLEAR], outcomes[BindOutcome.FOUND_NOT_BOUND], outcomes[BindOutcome.BOUND]) == (1, 1, 1)
    assert cluster.leadership.unclear_bindings == 0


async def test_a_binding_that_arrives_after_the_touch_fails(cluster: Led) -> None:
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    cluster.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
    assert await cluster.bind("a", "n1") != ""
    await cluster.pause(1)  # settled: the pod was touched, and is not bound
    assert (reserved(cluster), cluster.server.late) == (0, [])
    cluster.leadership.ledger.claims.forget_prediction(cluster.uid("a"))
    assert await cluster.schedule("b") == ""
    await cluster.pause(LATE_S)
    assert cluster.server.late == [409]
    assert (cluster.bound_to("a"), cluster.bound_to("b")) == ("", "n1")


async def test_a_binding_that_arrives_before_the_touch_is_found(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(hang=True, late_s=LATE_S), when=is_binding)
    cluster.server.slowness = lambda request: (LATE_S, 0.0) if is_touch(request) else (0.0, 0.0)
    assert await cluster.bind("a", "n1") != ""
    await cluster.pause(60)
    assert cluster.server.late == [200]
    assert (reserved(cluster), cluster.free_cards(), cluster.bound_to("a")) == (0, 0, "n1")


async def test_until_it_is_known_the_devices_are_nobodys(cluster: Led) -> None:
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    cluster.server.fail(Fault(status=500), when=is_binding)
    cluster.server.fail(Fault(status=403), when=is_touch, times=1000)
    assert await cluster.bind("a", "n1") != ""
    await cluster.pause(600)
    assert await cluster.schedule("b") == REFUSED
    await cluster.remove_pod("a")
    assert await cluster.schedule("b") == ""
    touches = len(cluster.sent(pod_path("a") + "/status"))
    await cluster.pause(600)
    assert len(cluster.sent(pod_path("a") + "/status")) <= touches + 1  # the watch's word ends it too


@pytest.mark.parametrize("meanwhile", ["gone", "another of its name"])
async def test_the_pod_ended_before_it_was_known(cluster: Led, meanwhile: str) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(LOST, when=is_binding)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(1)
    if meanwhile == "gone":
        del cluster.server.objects[pod_path("a")]
    else:
        cluster.server.objects[pod_path("a")] = {
            **(result := cluster.json("a")),
            "metadata": {**result["metadata"], "uid": "another"},
        }
    assert await binding != ""
    await cluster.pause(1)
    assert (reserved(cluster), cluster.free_cards()) == (0, 1)


async def test_an_answer_that_is_not_kubernetes(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=500, body=b"<html>"), when=is_binding)
    assert await cluster.bind("a", "n1") != ""
    await cluster.pause(1)
    assert await cluster.schedule("a") == ""


# Leading


async def test_who_leads_no_more_sends_no_binding(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.leads = False
    assert await cluster.bind("a", "n1") != ""
    assert (cluster.sent("/binding"), reserved(cluster)) == ([], 0)


async def test_lost_between_two_tries(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=409, reason="Conflict"), when=is_binding)
    cluster.server.slowness = lambda request: (0.1, 0.1) if is_binding(request) else (0.0, 0.0)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(0.05)
    await cluster.server.put(pod_path("a"), pod("a", annotations={"changed": "yes"}))
    cluster.leads = False
    assert await binding != ""
    assert (len(cluster.sent("/binding")), cluster.bound_to("a")) == (1, "")


async def test_a_term_that_is_over_sends_nothing_though_the_process_leads_again(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.leadership.stop()
    assert await cluster.bind("a", "n1") != ""
    assert cluster.sent("/binding") == []


async def test_a_term_that_ends_while_it_binds(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(LOST, when=is_binding)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(1)
    assert not await cluster.leadership.end()  # the outcome of the Binding stays unknown
    assert await binding == OfBinding.NOT_LEADING.shown
    await cluster.pause(60)
    assert cluster.sent("/status") == []  # nothing is written by a leadership that is over


async def test_a_term_that_ends_with_an_outcome_open(cluster: Led) -> None:
    await cluster.put_pod("a")
    assert await cluster.bind("a", "n1") == ""
    await cluster.pause()
    await cluster.put_pod("b")
    assert await cluster.make_leadership().end()
    await cluster.put_node("n2")
    cluster.server.fail(Fault(status=500), when=is_binding)
    cluster.server.fail(Fault(status=500), when=is_touch, times=9)
    assert await cluster.bind("b", "n2") != ""
    assert not await cluster.leadership.end()


# Killed, and begun anew


@pytest.mark.parametrize("carried_out", [False, True])
async def test_killed_while_it_binds(cluster: Led, carried_out: bool) -> None:
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    cluster.server.fail(LOST_ANSWER if carried_out else LOST, when=is_binding)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(1)
    await cluster.leadership.end()
    await binding
    await cluster.begin()
    assert reserved(cluster) == 0
    assert (await cluster.schedule("b") == "") is not carried_out
    assert await cluster.schedule("a") == ("" if carried_out else REFUSED)
    assert cluster.bound_to("a") == ("n1" if carried_out else "")
    assert cluster.assigned("a") + cluster.assigned("b") == [gpu_uuid("n1", 0)]


async def test_killed_between_reserve_and_binding(cluster: Led) -> None:
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    cluster.filter("a")
    cluster.leadership.scheduler.reserve(cluster.uid("a"), "n1")
    await cluster.lead_again()
    assert await cluster.schedule("b") == ""
    assert await cluster.schedule("a") == REFUSED


@pytest.mark.central(signer=a_signer())
async def test_the_signature_is_over_the_exact_text(cluster: Led) -> None:
    await cluster.place("a")
    annotations = cluster.json("a")["metadata"]["annotations"]
    assert cluster.signer is not None
    assert cluster.signer.accepts(annotations[ASSIGNMENT], annotations[ASSIGNMENT_SIGNATURE])
    assert not cluster.signer.accepts(annotations[ASSIGNMENT] + " ", annotations[ASSIGNMENT_SIGNATURE])
