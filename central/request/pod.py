"""Define the few fields of a Pod that central reads: from the watch, from kube-scheduler's requests, from a manifest.

They are decoded from JSON with msgspec, which skips all other fields without building them: a pod of 4 KB costs a few
microseconds. A field whose type is not that of Kubernetes raises msgspec.ValidationError in the decoder. The structs are frozen
and without cycles, so that the garbage collector does not traverse 100,000 of them.

Source: k8s.io/api/core/v1, as of v1.36.
"""

from collections.abc import Iterator
from typing import Annotated, Final, TypeVar

import msgspec

from central.request.model import Role
from lading.vocabulary import PodUid

DEVICES_HEALTHY: Final = "lading.dev/DevicesHealthy"  # the condition by which central reports devices that became unhealthy
SCHEDULED: Final = "PodScheduled"  # the condition by which kube-scheduler reports what it found
UNSCHEDULABLE: Final = "Unschedulable"
RESIZE_PENDING: Final = "PodResizePending"  # the condition by which kubelet reports a resize that is not done yet
INFEASIBLE: Final = "Infeasible"
_LONGEST_VERSION: Final = 128  # characters; the API server's are numbers of 64 bits

# The API server writes text. A manifest may have numbers, and `cpu: 0.5` of another container must not make it unreadable.
Amount = str | int | float


class _Wire(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """Set how all parts of the object are decoded."""


class Metadata(_Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: PodUid = PodUid("")
    resource_version: Annotated[str, msgspec.Meta(max_length=_LONGEST_VERSION)] = ""
    creation_timestamp: str | None = None  # RFC 3339
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Resources(_Wire, frozen=True):
    limits: dict[str, Amount] = {}
    requests: dict[str, Amount] = {}


class Container(_Wire, frozen=True):
    name: str
    resources: Resources = Resources()
    restart_policy: str = ""  # "Always" makes an init container a sidecar


class SchedulingGroup(_Wire, frozen=True):
    """Name the PodGroup of a pod: Kubernetes 1.36 (alpha)."""

    pod_group_name: str = ""


class WorkloadRef(_Wire, frozen=True):
    """Name the PodGroup of a pod: Kubernetes 1.35 (alpha)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class SchedulingGate(_Wire, frozen=True):
    """Name why kube-scheduler does not try the pod yet."""

    name: str = ""


class Requirement(_Wire, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class SelectorTerm(_Wire, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(_Wire, frozen=True):
    node_selector_terms: tuple[SelectorTerm, ...] | None = None


class NodeAffinity(_Wire, frozen=True):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(_Wire, frozen=True):
    node_affinity: NodeAffinity | None = None


class Toleration(_Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Spec(_Wire, frozen=True):
    """Hold the spec, without ephemeral containers, which cannot have resources."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduler_name: str = ""
    node_name: str = ""
    priority: int = 0
    preemption_policy: str = ""  # "Never", or that of lower priority
    resources: Resources | None = None  # of the pod as a whole; before its containers'
    termination_grace_period_seconds: int = 30
    overhead: dict[str, Amount] = {}  # of its runtime class
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None

    @property
    def gang(self) -> tuple[str, ...]:
        """Return the native PodGroup that kube-scheduler tries as a whole; empty: none."""
        if self.scheduling_group is not None:
            return (self.scheduling_group.pod_group_name,)
        ref = self.workload_ref
        return (ref.name, ref.pod_group, ref.pod_group_replica_key) if ref is not None else ()


class Condition(_Wire, frozen=True):
    type: str = ""
    status: str = ""  # True, False, Unknown
    reason: str = ""
    message: str = ""


_READ: Final = frozenset({DEVICES_HEALTHY, RESIZE_PENDING})
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


class Actual(_Wire, frozen=True):
    """Hold what a running container has: Kubernetes 1.33 (KEP-1287)."""

    name: str = ""
    resources: Resources | None = None
    allocated_resources: dict[str, Amount] | None = None


class Status(_Wire, frozen=True):
    """Keep only what is read of the conditions: every pod has some five others."""

    phase: str = ""
    start_time: str | None = None  # when its kubelet saw it first: RFC 3339
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[Actual, ...] | None = None
    init_container_statuses: tuple[Actual, ...] | None = None
    resources: Resources | None = None  # of the pod as a whole
    allocated_resources: dict[str, Amount] | None = None

    def __post_init__(self) -> None:
        if self.conditions:
            read = tuple(one for one in self.conditions if one.type in _READ or _says_unschedulable(one))
            msgspec.structs.force_setattr(self, "conditions", read)

    @property
    def resize_infeasible(self) -> bool:
        """Return whether the node will never have room for the resize that the spec wants."""
        return any(one.type == RESIZE_PENDING and one.reason == INFEASIBLE for one in self.conditions)

    def actual(self, container: str) -> Actual | None:
        """Return what the container has; None if its node does not say."""
        statuses = (*(self.container_statuses or ()), *(self.init_container_statuses or ()))
        return next((one for one in statuses if one.name == container and one.resources is not None), None)

    @property
    def healthy(self) -> Condition | None:
        """Return what central says of the health of the pod's devices; None if it has said nothing."""
        return next((one for one in self.conditions if one.type == DEVICES_HEALTHY), None)

    @property
    def unschedulable(self) -> bool:
        """Return whether kube-scheduler tried the pod last and found no node."""
        return any(map(_says_unschedulable, self.conditions))


def _says_unschedulable(condition: Condition) -> bool:
    return (condition.type, condition.status, condition.reason) == (SCHEDULED, "False", UNSCHEDULABLE)


class Pod(_Wire, frozen=True):
    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def ended(self) -> bool:
        """Return whether its containers ended and never run again."""
        return self.status.phase in _TERMINAL


AnyPod = TypeVar("AnyPod", bound=Pod)


def without_annotations(pod: AnyPod, keys: frozenset[str]) -> AnyPod:
    """Return the pod without these annotations."""
    annotations = pod.metadata.annotations
    if not keys & annotations.keys():
        return pod
    left = {key: value for key, value in annotations.items() if key not in keys}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=left))


def roles_of(pod: Pod) -> tuple[tuple[str, Role], ...]:
    """Return every container of the pod, in the order in which kubelet starts them."""
    return tuple((container.name, role) for container, role in starting_order(pod))


def starting_order(pod: Pod) -> Iterator[tuple[Container, Role]]:
    for container in pod.spec.init_containers:
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers:
        yield container, Role.APP
