"""Determine the state of a pod, and find the refusals by its node. Pure.

Take the pod, its request as parsed by central, and its Events. Return one `Situation`, the first of these that applies: the pod
has ended; its node refuses it; it runs; it starts; something other than devices holds it; it waits for devices.

A refusal has the form "lading: CODE: message". kubelet passes it on in the state of a container or in an Event. The codes are
in `lading.reasons`, with what to do about each.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from central.request.model import DeviceRequest, MalformedRequest
from central.request.reasons import OfBinding, OfPod
from central.search.placement import Missing
from kubectl_lading.objects import FullPod
from kubectl_lading.pods.read_pod import PodEvent
from lading.reasons import Reason
from lading.vocabulary import ASSIGNMENT, is_manual

FIXES: Final[Mapping[str, str]] = {code.value: code.plain_remedy for code in (*Reason, *Missing, *OfPod, *OfBinding)}
SCHEDULER: Final = "lading"  # schedulerName of the profile with central as extender (deploy/scheduler/config.yaml)
SCHEDULED: Final = "PodScheduled"
_REFUSAL: Final = re.compile(r"\blading: ([a-z-]+): (.*)", re.DOTALL)
_CONTAINER: Final = re.compile(r"\{([^}]*)\}")
_ONLY_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


class Stand(StrEnum):
    ENDED = "ended"
    REFUSED = "refused-on-node"
    RUNNING = "running"
    STARTING = "starting"
    NO_DEVICES = "asks-for-no-device"
    GATED = "gated"
    MALFORMED = "request-malformed"
    OTHER_SCHEDULER = "other-scheduler"
    WAITING = "waiting"


class PodRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a refusal: of a bound pod by its node, or of a malformed request by central."""

    code: str
    message: str
    fix: str
    container: str = ""  # name of the refused container; empty: the whole pod
    times: int = 1  # number of occurrences
    last: str = ""  # RFC 3339 time of the last occurrence


class Situation(msgspec.Struct, frozen=True, omit_defaults=True):
    stand: Stand
    said: str  # the situation, as text
    node: str = ""
    refusals: tuple[PodRefusal, ...] = ()
    waits_for: tuple[str, ...] = ()  # waiting containers of a starting pod, each with its reason
    scheduler_says: str = ""  # kube-scheduler's message, for a pod that is not bound
    hint: str = ""


def read_situation(pod: FullPod, requested: DeviceRequest | MalformedRequest | None, events: Sequence[PodEvent]) -> Situation:
    """Return the pod's situation. `events`: the pod's Events, the oldest first."""
    if pod.ended:
        text = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
        return Situation(stand=Stand.ENDED, said=f"has ended: {pod.status.phase}" + (f": {text}" if text else ""))
    if pod.spec.node_name:
        return _on_its_node(pod, requested, events)
    return _unbound(pod, requested)


# ---- bound


def _on_its_node(pod: FullPod, requested: DeviceRequest | MalformedRequest | None, events: Sequence[PodEvent]) -> Situation:
    node, unstarted = pod.spec.node_name, _unstarted(pod)
    runs = pod.status.phase == "Running" and not unstarted
    refusals = () if runs else tuple(_refusals(pod, requested, events, {name for name, _ in unstarted}))
    if refusals:
        return Situation(stand=Stand.REFUSED, said=f"is refused on node {node}", node=node, refusals=refusals)
    if runs:
        healthy = pod.status.healthy
        unhealthy = healthy.message if healthy is not None and healthy.status == "False" else ""
        text = f"runs on node {node}" + (", with devices that became unhealthy" if unhealthy else "")
        return Situation(stand=Stand.RUNNING, said=text, node=node, hint=unhealthy)
    waits = tuple(f"{name}: {reason}" for name, reason in unstarted)
    return Situation(stand=Stand.STARTING, said=f"is bound to node {node}, and starts there", node=node, waits_for=waits)


def _unstarted(pod: FullPod) -> list[tuple[str, str]]:
    """Return the waiting containers with their reasons. Leave out containers that are only starting if others have another
    reason."""
    result = []
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if (waiting := status.state.waiting) is not None:
            text = ": ".join(filter(None, (waiting.reason, waiting.message)))
            result.append((status.name, text))
    return [one for one in result if one[1] not in _ONLY_STARTING] or result


def _refusals(
    pod: FullPod, requested: DeviceRequest | MalformedRequest | None, events: Sequence[PodEvent], unstarted: set[str]
) -> Iterator[PodRefusal]:
    """Yield the newest refusal of each container. The state of a container is newer than its Events."""
    by_container: dict[str, PodRefusal] = {}
    for event in events:
        named = _CONTAINER.search(event.involved_object.field_path)
        if result := _parse(event.message, named[1] if named else "", times=event.times, last=event.last):
            by_container[result.container] = result
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and (result := _parse(waiting.message, status.name)):
            alike = [known for name in (status.name, "") if (known := by_container.get(name)) and known.code == result.code]
            times, last = (alike[0].times, alike[0].last) if alike else (1, "")
            by_container[status.name] = msgspec.structs.replace(result, times=times, last=last)
    if not by_container and isinstance(requested, DeviceRequest) and ASSIGNMENT not in pod.metadata.annotations:
        message = "the pod asks for devices and was bound without an assignment: by another scheduler, or by hand"
        yield _refusal(Reason.ASSIGNMENT_MISSING, message)
    of_containers = {result.code for name, result in by_container.items() if name}
    for name, result in by_container.items():
        if (name in unstarted or not unstarted) if name else result.code not in of_containers:
            yield result


def _parse(text: str, container: str, *, times: int = 1, last: str = "") -> PodRefusal | None:
    match = _REFUSAL.search(text)
    if match is None or match[1] not in set(Reason):
        return None
    return _refusal(Reason(match[1]), match[2].strip(), container=container, times=times, last=last)


def _refusal(code: Reason, message: str, *, container: str = "", times: int = 1, last: str = "") -> PodRefusal:
    return PodRefusal(code=code.value, message=message, fix=FIXES[code.value], container=container, times=times, last=last)


# ---- not bound


def _unbound(pod: FullPod, requested: DeviceRequest | MalformedRequest | None) -> Situation:
    scheduled = pod.condition(SCHEDULED)
    says = scheduled.message if scheduled is not None and scheduled.status != "True" else ""
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return Situation(
            stand=Stand.GATED,
            said=f"is gated: no scheduler looks at it until its schedulingGates are gone: {gates}",
            hint="a queue (Kueue, for one) removes its gate when it admits the pod",
        )
    if isinstance(requested, MalformedRequest):
        code = OfPod.REQUEST_MALFORMED.value
        refusal = PodRefusal(code=code, message=requested.message, fix=FIXES[code])
        return Situation(stand=Stand.MALFORMED, said="has an invalid device request", refusals=(refusal,), scheduler_says=says)
    if requested is None:
        by_hand = any(map(is_manual, pod.metadata.annotations))
        what = "names its devices by hand, which the node looks at" if by_hand else "asks for no device of lading.dev/"
        return Situation(stand=Stand.NO_DEVICES, said=f"{what}: Lading does not keep it from being bound", scheduler_says=says)
    if pod.spec.scheduler_name != SCHEDULER:
        return Situation(
            stand=Stand.OTHER_SCHEDULER,
            said=f"asks for devices, and names the scheduler {pod.spec.scheduler_name or 'default-scheduler'}",
            scheduler_says=says,
            hint=f"devices are given by the scheduler {SCHEDULER}: set schedulerName: {SCHEDULER}, and create the pod again",
        )
    hint = "" if scheduled else "no PodScheduled condition yet; is the scheduler running? kubectl lading status"
    return Situation(stand=Stand.WAITING, said="waits for devices", scheduler_says=says, hint=hint)
