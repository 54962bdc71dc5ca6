"""Test the state of a pod by its object and its Events, and the advice for each reason."""

from typing import Any

import msgspec
import pytest

from central.request.parse import parse_request
from central.request.pod import Pod
from central.request.reasons import OfPod
from kubectl_lading.objects import FullPod
from kubectl_lading.pods.read_pod import PodEvent
from kubectl_lading.pods.situation import Situation, Stand, read_situation
from lading.reasons import Reason
from tests.fakes.kube_objects import WHOLE, pod

HELD = "lading: device-held: GPU-1 is held by team-a/other"
ASSIGNED = {"lading.dev/assignment": "{}"}


def event(message: str, *, container: str = "main", last: str = "2026-11-21T12:00:00Z", count: int = 1) -> dict[str, Any]:
    return {
        "involvedObject": {"uid": "u", "fieldPath": f"spec.containers{{{container}}}" if container else ""},
        "reason": "Failed",
        "message": f"Error: rpc error: code = FailedPrecondition desc = {message}",
        "lastTimestamp": last,
        "count": count,
    }


def situation(made: dict[str, Any], *events: dict[str, Any], **status: Any) -> Situation:
    made["status"] |= status
    requested = parse_request(msgspec.convert(made, Pod))
    return read_situation(msgspec.convert(made, FullPod), requested, [msgspec.convert(one, PodEvent) for one in events])


def bound(**options: Any) -> dict[str, Any]:
    return pod("p", WHOLE, node="n1", annotations=ASSIGNED, **options)


def waits(container: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": container, "state": {"waiting": {"reason": reason, "message": message}}}


def codes(result: Situation) -> list[tuple[str, str]]:
    return [(one.container, one.code) for one in result.refusals]


def test_a_refusal_is_read_of_the_state_of_a_container() -> None:
    result = situation(bound(), containerStatuses=[waits("main", "CreateContainerError", HELD)])
    assert (result.stand, result.node, codes(result)) == (Stand.REFUSED, "n1", [("main", Reason.DEVICE_HELD)])
    assert "team-a/other" in result.refusals[0].message
    assert result.refusals[0].fix


def test_of_a_container_the_newest_event_counts_and_its_state_before_that() -> None:
    older, newer = event("lading: not-reconciled: wait", count=1), event(HELD, count=7)
    result = situation(bound(), older, newer, containerStatuses=[waits("main", "CreateContainerError")])
    assert [(one.code, one.times) for one in result.refusals] == [(Reason.DEVICE_HELD, 7)]
    said_now = [waits("main", "CreateContainerError", "lading: device-unhealthy: lost")]
    assert codes(situation(bound(), newer, containerStatuses=said_now)) == [("main", Reason.DEVICE_UNHEALTHY)]


def test_the_number_of_times_is_that_of_the_same_reason() -> None:
    result = situation(bound(), event(HELD, count=7), containerStatuses=[waits("main", "CreateContainerError", HELD)])
    assert [one.times for one in result.refusals] == [7]


def test_what_is_reported_of_a_container_is_not_reported_of_the_pod_too() -> None:
    states = [waits("main", "CreateContainerError", HELD)]
    (refusal,) = situation(bound(), event(HELD, container="", count=5), containerStatuses=states).refusals
    assert (refusal.container, refusal.code, refusal.times) == ("main", Reason.DEVICE_HELD, 5)


def test_a_refused_sandbox_is_the_pods() -> None:
    result = situation(bound(), event("lading: runtime-handler: kata", container=""), containerStatuses=[])
    assert codes(result) == [("", Reason.RUNTIME_HANDLER)]


def test_what_was_refused_before_the_pod_ran_is_over() -> None:
    running = [{"name": "main", "ready": True, "state": {"running": {}}}]
    result = situation(bound(), event(HELD), phase="Running", containerStatuses=running)
    assert (result.stand, result.refusals) == (Stand.RUNNING, ())


def test_one_container_runs_and_the_other_one_is_refused() -> None:
    states = [{"name": "main", "state": {"running": {}}}, waits("side", "CreateContainerError", HELD)]
    result = situation(bound(), event("lading: not-reconciled: wait"), phase="Running", containerStatuses=states)
    assert (result.stand, codes(result)) == (Stand.REFUSED, [("side", Reason.DEVICE_HELD)])


def test_codes_that_are_not_ours_are_no_refusal() -> None:
    result = situation(bound(), containerStatuses=[waits("main", "Error", "lading: the runtime cannot be reached: x")])
    assert (result.stand, result.refusals) == (Stand.STARTING, ())


def test_bound_without_an_assignment() -> None:
    result = situation(pod("p", WHOLE, node="n1"))
    assert (result.stand, codes(result)) == (Stand.REFUSED, [("", Reason.ASSIGNMENT_MISSING)])


def test_one_that_starts_says_what_it_waits_for() -> None:
    states = [waits("main", "ImagePullBackOff", "no such image"), waits("side", "ContainerCreating")]
    result = situation(bound(), containerStatuses=states)
    assert result.stand is Stand.STARTING
    assert result.waits_for == ("main: ImagePullBackOff: no such image",)


def test_one_that_runs_with_devices_that_became_unhealthy() -> None:
    ill = [{"type": "lading.dev/DevicesHealthy", "status": "False", "message": "GPU-1: lost"}]
    result = situation(bound(), phase="Running", conditions=ill)
    assert (result.stand, result.hint) == (Stand.RUNNING, "GPU-1: lost")
    assert not situation(bound(), phase="Running", conditions=[ill[0] | {"status": "True"}]).hint


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended(phase: str) -> None:
    result = situation(bound(), phase=phase, reason="Evicted", message="for default/high")
    assert result.stand is Stand.ENDED
    assert "Evicted: for default/high" in result.said


def test_not_bound() -> None:
    gated = pod("p")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert situation(gated).stand is Stand.GATED
    assert "kueue.x-k8s.io/admission" in situation(gated).said
    assert situation(pod("p", {})).stand is Stand.NO_DEVICES
    assert situation(pod("p", scheduler="default-scheduler")).stand is Stand.OTHER_SCHEDULER
    malformed = situation(pod("p", {"lading.dev/gpu": "a few"}))
    assert (malformed.stand, codes(malformed)) == (Stand.MALFORMED, [("", OfPod.REQUEST_MALFORMED)])
    assert "main" in malformed.refusals[0].message


def test_devices_by_hand_need_no_scheduler_of_lading() -> None:
    assert situation(pod("p", {}, annotations={"lading.dev/gpus.main": "0"})).stand is Stand.NO_DEVICES


def test_what_kube_scheduler_says_is_repeated_until_the_pod_is_scheduled() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes are available"}
    result = situation(pod("p"), conditions=[condition])
    assert (result.stand, result.scheduler_says, result.hint) == (Stand.WAITING, "0/5 nodes are available", "")
    assert situation(pod("p")).hint
