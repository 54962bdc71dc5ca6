"""Compute the pod conditions about the health of devices: one for each pod that holds a device that became unhealthy.

The inputs are a node's devices (`NodeCapacity`), the pods that hold these by assignment or grant, and the pods' current
conditions. The result is a Word for each pod whose condition is out of date. A pod gets no condition before one of its devices
becomes unhealthy for the first time: up to 100,000 pods with healthy devices need none.

The condition in the pod is the only record of earlier writes: a new leader reads the condition there and repeats nothing. Two
Words about the same devices and reasons have the same text and are equal.

An unhealthy card makes its MIG instances unhealthy, an unhealthy PF its VFs. A device that the node does not report any more is
unhealthy: its pod cannot get it again. A cordon does not make a device unhealthy. Pods on a node without a report get no new
condition.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from central.assignment.model import Taken
from central.controllers.event_reasons import EventReason
from central.ledger.model import Held, Holder, NodeCapacity, version_of
from central.ledger.views import FACTS
from central.request.pod import DEVICES_HEALTHY, Pod
from lading.amounts import first_few
from lading.vocabulary import PodUid

# An Event's message has at most 1,024 characters, and so has one reason in a report; a pod has up to some 30 devices.
_LONGEST_REASON: Final = 120
_NAMED: Final = 4
_NOT_REPORTED: Final = "its node does not report it any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCondition:
    """Hold the content of a pod's condition. `version`: the pod's resourceVersion."""

    healthy: bool
    message: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """Hold the condition to write into a pod."""

    pod: Holder
    node: str
    healthy: bool
    message: str
    turned: bool  # the condition is new, or its status changes

    @property
    def reason(self) -> str:
        return EventReason.DEVICE_HEALTHY if self.healthy else EventReason.DEVICE_UNHEALTHY

    def render_condition(self, at: str) -> dict[str, str]:
        """Return a patch that merges conditions by their type. `at`: RFC 3339."""
        status = "True" if self.healthy else "False"
        condition = {"type": DEVICES_HEALTHY, "status": status, "reason": self.reason, "message": self.message}
        return condition | ({"lastTransitionTime": at} if self.turned else {})


class Conditions:
    """Keep the conditions of pods, by the newest version of each pod. Pods without a condition are not kept."""

    def __init__(self) -> None:
        self._written: dict[PodUid, HealthCondition] = {}
        self._changed: dict[str, None] = {}

    def get(self, uid: PodUid) -> HealthCondition | None:
        return self._written.get(uid)

    def is_written(self, change: HealthChange) -> bool:
        text = self._written.get(change.pod.pod)
        return text is not None and (text.healthy, text.message) == (change.healthy, change.message)

    def show(self, pod: Pod) -> None:
        """Store the condition as the API server has it."""
        condition = pod.status.healthy
        before = self._written.get(pod.metadata.uid)
        if condition is None and before is None:
            return
        version = version_of(pod.metadata.resource_version)
        if before is not None and version < before.version:
            return
        if condition is None:
            del self._written[pod.metadata.uid]
        else:
            message = HealthCondition(healthy=condition.status == "True", message=condition.message, version=version)
            self._written[pod.metadata.uid] = message
        self._changed[pod.spec.node_name] = None

    def put(self, change: HealthChange, version: int) -> None:
        """Record that the condition was written. Earlier versions of the pod, which the watch may still show, are ignored."""
        self._written[change.pod.pod] = HealthCondition(healthy=change.healthy, message=change.message, version=version)

    def forget(self, uid: PodUid) -> None:
        self._written.pop(uid, None)

    def forget_all_but(self, uids: Collection[PodUid]) -> None:
        self._written = {uid: text for uid, text in self._written.items() if uid in uids}

    def take_changed(self) -> tuple[str, ...]:
        """Return the nodes of pods whose conditions changed since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed


def concerns(capacity: NodeCapacity, holds: Iterable[tuple[PodUid, Taken]], conditions: Conditions) -> bool:
    """Return whether one of these pods may need a new condition. The check costs a tenth of computing the conditions, which are
    rarely needed."""
    if not capacity.reported:
        return False
    known = _unhealthy_devices(capacity)
    for uid, taken in holds:
        condition = conditions.get(uid)
        if (condition is not None and not condition.healthy) or any(
            known.get(device) != "" for device in _devices_in(taken, known)
        ):
            return True
    return False


def decide_health_changes(capacity: NodeCapacity, holders: Iterable[Held], conditions: Conditions) -> Iterator[HealthChange]:
    """Yield the conditions to write. `holders`: pods on this node with their devices."""
    if not capacity.reported:
        return
    known = _unhealthy_devices(capacity)
    for held in holders:
        devices = _devices_of(held, known)
        condition = conditions.get(held.holder.pod)
        unhealthy = [text for device in sorted(devices) if (text := known.get(device, f"{device}: {_NOT_REPORTED}"))]
        if not devices or (not unhealthy and (condition is None or condition.healthy)):
            continue
        change = HealthChange(
            pod=held.holder,
            node=capacity.name,
            healthy=not unhealthy,
            message=f"on node {capacity.name}: {_listed(unhealthy)}"
            if unhealthy
            else f"on node {capacity.name}: all of its devices are healthy",
            turned=condition is None or condition.healthy == bool(unhealthy),
        )
        if not conditions.is_written(change):
            yield change


def _unhealthy_devices(capacity: NodeCapacity) -> dict[str, str]:
    """Return the problem of every reported device as text; empty for a healthy device."""
    result: dict[str, str] = {}
    for card in capacity.cards:
        gpu = card.gpu
        result[gpu.uuid] = f"{gpu.uuid} ({gpu.bdf}): {gpu.unhealthy[:_LONGEST_REASON]}" if gpu.unhealthy else ""
        result.update((mig.uuid, "") for mig in gpu.mig)
    for one in capacity.vfs:
        of_port = f"its PF {one.pf.bdf}: {one.pf.unhealthy}" if one.pf.unhealthy else ""
        reason = (of_port or one.vf.unhealthy)[:_LONGEST_REASON]
        result[one.vf.bdf] = f"VF {one.vf.bdf}: {reason}" if reason else ""
    return result


def _devices_of(held: Held, known: Mapping[str, str]) -> set[str]:
    """Return the pod's devices by assignment and grant, because central's plans are not reported to a pod."""
    by_fact = (held.claims[claim] for claim in FACTS if claim in held.claims)
    return {device for taken in by_fact for device in _devices_in(taken, known)}


def _devices_in(taken: Taken, known: Mapping[str, str]) -> Iterator[str]:
    """Return the devices. If a whole card is unhealthy or not reported, its MIG instances are left out."""
    yield from taken.vfs
    for uuid, part in taken.gpus.items():
        yield uuid
        if part.mig and known.get(uuid) == "":
            yield from part.mig


def _listed(unhealthy: Sequence[str]) -> str:
    return first_few(unhealthy, _NAMED, between="; ", rest="; and {} more")
