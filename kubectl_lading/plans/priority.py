"""The priority of a pod that is not created yet: what the API server would write into it, or why it would refuse it. Pure.

Enters: what the manifest says of it, the PriorityClasses of the cluster and of the manifests. Leaves: the pod with `priority`
and `preemptionPolicy`, or a `RefusedPod`. A pod without a class has the one that is the global default, of several the lowest;
else priority 0. A number or a policy that is written in the pod and differs from its class is refused, as the API server does.

Source: k8s.io/kubernetes plugin/pkg/admission/priority, as of v1.36; k8s.io/api scheduling/v1 PriorityClass.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import msgspec

from central.ask.pod import Pod
from kubectl_lading.objects import Object, Wire

LOWER: Final = "PreemptLowerPriority"


class PriorityClass(Object, frozen=True):
    value: int = 0
    global_default: bool | None = False  # null in some manifests
    preemption_policy: str | None = None


class Wanted(Wire, frozen=True):
    """The fields of a pod's spec that determine its priority; None: not written."""

    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPod:
    pod: Pod
    why: str


NO_CLASS: Final = PriorityClass()


def admit(pod: Pod, wanted: Wanted, classes: Iterable[PriorityClass] | None) -> Pod | RefusedPod:
    """Return the pod with its priority. Of several classes with one name the last counts. Without the right to
    read classes (None) it has the priority that is written in it.
    """
    if classes is None:
        return _with(pod, wanted.priority or 0, wanted.preemption_policy or "")
    by_name = {one.metadata.name: one for one in classes}
    name = wanted.priority_class_name or ""
    found = by_name.get(name) if name else _default(by_name.values())
    if found is None:
        near = get_close_matches(name, by_name, n=1)
        return RefusedPod(pod=pod, why=f"there is no PriorityClass {name}" + (f"; there is {near[0]}" if near else ""))
    whose = f"PriorityClass {found.metadata.name}" if found.metadata.name else "no PriorityClass"
    policy = found.preemption_policy or LOWER
    if wanted.priority is not None and wanted.priority != found.value:
        return RefusedPod(pod=pod, why=f"priority {wanted.priority} is written in it, and with {whose} it has {found.value}")
    if wanted.preemption_policy is not None and wanted.preemption_policy != policy:
        written = wanted.preemption_policy
        return RefusedPod(pod=pod, why=f"preemptionPolicy {written} is written in it, and with {whose} it has {policy}")
    return _with(pod, found.value, policy)


def _default(classes: Iterable[PriorityClass]) -> PriorityClass:
    return min((one for one in classes if one.global_default), key=lambda one: one.value, default=NO_CLASS)


def _with(pod: Pod, priority: int, policy: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=priority, preemption_policy=policy))
