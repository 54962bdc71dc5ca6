"""Define the few fields of a Pod that central reads: from the watch, from kube-scheduler's requests, from a manifest.

They are decoded from JSON with msgspec, which skips all other fields without building them: a pod of 4 KB costs a few
microseconds. A field of another type than in Kubernetes raises msgspec.ValidationError in the decoder. Parts that other objects
have too are in `lading.kube.objects`.

Source: k8s.io/api/core/v1, as of v1.36.
"""

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from central.request.model import Role
from lading.kube.objects import AnnotatedMetadata, ObjectCondition, Requirement, Wire
from lading.vocabulary import PodUid

DEVICES_HEALTHY: Final = "lading.dev/DevicesHealthy"  # the condition by which central reports devices that became unhealthy
SCHEDULED: Final = "PodScheduled"  # the condition by which kube-scheduler reports its last attempt
UNSCHEDULABLE: Final = "Unschedulable"
RESIZE_PENDING: Final = "PodResizePending"  # the condition by which kubelet reports a resize that is not done yet
INFEASIBLE: Final = "Infeasible"

# The API server writes text, but manifests may have numbers: `cpu: 0.5` of a container must not make the pod unreadable.
Amount = str | int | float


class PodMetadata(AnnotatedMetadata, frozen=True):
    uid: PodUid = PodUid("")
    deletion_grace_period_seconds: int = 0


class Resources(Wire, frozen=True):
    limits: dict[str, Amount] = msgspec.field(default_factory=dict)
    requests: dict[str, Amount] = msgspec.field(default_factory=dict)


class SecurityContext(Wire, frozen=True):
    privileged: bool | None = None


class Container(Wire, frozen=True):
    name: str
    resources: Resources = Resources()
    restart_policy: str = ""  # "Always" makes an init container a sidecar
    security_context: SecurityContext | None = None

    @property
    def privileged(self) -> bool:
        return self.security_context is not None and bool(self.security_context.privileged)


class SchedulingGroup(Wire, frozen=True):
    """Name the PodGroup of a pod: Kubernetes 1.36 (alpha)."""

    pod_group_name: str = ""


class WorkloadRef(Wire, frozen=True):
    """Name the PodGroup of a pod: Kubernetes 1.35 (alpha)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class SchedulingGate(Wire, frozen=True):
    """Represent a scheduling gate. kube-scheduler does not try a pod with gates."""

    name: str = ""


class SelectorTerm(Wire, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: tuple[SelectorTerm, ...] | None = None


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(Wire, frozen=True):
    """Hold the spec, without ephemeral containers, which cannot have resources."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduler_name: str = ""
    node_name: str = ""
    priority: int = 0
    preemption_policy: str = ""  # "Never", or "PreemptLowerPriority"
    resources: Resources | None = None  # amounts for the pod as a whole, which replace the containers' sum
    termination_grace_period_seconds: int = 30
    overhead: dict[str, Amount] = msgspec.field(default_factory=dict)  # overhead of the pod's runtime class
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None

    @property
    def gang(self) -> tuple[str, ...]:
        """Return the key of the pod's native PodGroup, which kube-scheduler tries as a whole; empty if there is none."""
        if self.scheduling_group is not None:
            return (self.scheduling_group.pod_group_name,)
        ref = self.workload_ref
        return (ref.name, ref.pod_group, ref.pod_group_replica_key) if ref is not None else ()


class Condition(ObjectCondition, frozen=True):
    reason: str = ""
    message: str = ""


_READ: Final = frozenset({DEVICES_HEALTHY, RESIZE_PENDING})
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


class Actual(Wire, frozen=True):
    """Hold the actual and allocated resources of a running container: Kubernetes 1.33 (KEP-1287)."""

    name: str = ""
    resources: Resources | None = None
    allocated_resources: dict[str, Amount] | None = None


class Status(Wire, frozen=True):
    """Hold the status. Conditions that central does not read are dropped, because every pod has about five of them."""

    phase: str = ""
    start_time: str | None = None  # time when kubelet acknowledged the pod: RFC 3339
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[Actual, ...] | None = None
    init_container_statuses: tuple[Actual, ...] | None = None
    resources: Resources | None = None  # actual resources of the pod as a whole
    allocated_resources: dict[str, Amount] | None = None

    def __post_init__(self) -> None:
        if self.conditions:
            read = tuple(one for one in self.conditions if one.type in _READ or _is_unschedulable(one))
            msgspec.structs.force_setattr(self, "conditions", read)

    @property
    def resize_infeasible(self) -> bool:
        """Return whether the node can never provide the resources of the resize in the spec."""
        return any(one.type == RESIZE_PENDING and one.reason == INFEASIBLE for one in self.conditions)

    def actual(self, container: str) -> Actual | None:
        """Return the container's actual resources; None if its node does not report them."""
        statuses = (*(self.container_statuses or ()), *(self.init_container_statuses or ()))
        return next((one for one in statuses if one.name == container and one.resources is not None), None)

    @property
    def healthy(self) -> Condition | None:
        """Return the condition by which central reported the health of the pod's devices; None if there is none."""
        return next((one for one in self.conditions if one.type == DEVICES_HEALTHY), None)

    @property
    def unschedulable(self) -> bool:
        """Return whether kube-scheduler found no node for the pod in its last attempt."""
        return any(map(_is_unschedulable, self.conditions))


def _is_unschedulable(condition: Condition) -> bool:
    return (condition.type, condition.status, condition.reason) == (SCHEDULED, "False", UNSCHEDULABLE)


class Pod(Wire, frozen=True):
    metadata: PodMetadata
    spec: PodSpec = PodSpec()
    status: Status = Status()

    @property
    def ended(self) -> bool:
        """Return whether the pod's containers have ended and never run again."""
        return self.status.phase in _TERMINAL


AnyPod = TypeVar("AnyPod", bound=Pod)


def without_annotations(pod: AnyPod, keys: frozenset[str]) -> AnyPod:
    annotations = pod.metadata.annotations
    if not keys & annotations.keys():
        return pod
    left = {key: value for key, value in annotations.items() if key not in keys}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=left))


def roles_of(pod: Pod) -> tuple[tuple[str, Role], ...]:
    """Return the name and role of each container, in the order in which kubelet starts them."""
    return tuple((container.name, role) for container, role in starting_order(pod))


def starting_order(pod: Pod) -> Iterator[tuple[Container, Role]]:
    for container in pod.spec.init_containers:
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers:
        yield container, Role.APP
