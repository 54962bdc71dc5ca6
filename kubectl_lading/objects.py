"""Define the fields of the API server's objects that commands read; msgspec skips all other fields. Pure.

The structs are frozen, with camelCase keys on the wire; an absent field means its default. Nodes, reports and pods extend
central's own types by a few fields, so that one list serves both. A `FullPod` is for reading a single pod: a list of all pods
with its fields would be large.

Ending a pod of a DaemonSet or a static pod frees no capacity. A DaemonSet creates its pod again on the same node. A static pod
belongs to its kubelet, and its object in the API server (the mirror pod) only shows it.

Source: k8s.io/api apps/v1, coordination/v1, discovery/v1, admissionregistration/v1, apiextensions/v1, core/v1, as of v1.36;
k8s.io/apimachinery metav1.OwnerReference; "Create static Pods": the annotation kubernetes.io/config.mirror.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from central.api import objects as api
from central.request import pod as request
from lading import nodedevices
from lading.kube import objects as kube
from lading.kube.objects import AnnotatedMetadata, Object, Wire, is_true

MIRROR: Final = "kubernetes.io/config.mirror"
_BOUND_TO_ITS_NODE: Final = frozenset({"DaemonSet", "Node"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Stand for an object, or an answer of central, that could not be read."""

    why: str


class Named(Wire, frozen=True):
    name: str = ""


# ---- Deployments and DaemonSets


class Volume(Wire, frozen=True):
    config_map: Named | None = None
    persistent_volume_claim: dict[str, Any] | None = None


class Port(Wire, frozen=True):
    container_port: int
    name: str = ""


class Container(request.Container, frozen=True):
    image: str = ""
    ports: tuple[Port, ...] = ()


class PodSpec(request.PodSpec, frozen=True):
    """Extend central's spec by the images and ports of containers, and by volumes."""

    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Template(Wire, frozen=True):
    spec: PodSpec = PodSpec()


class TemplateSpec(Wire, frozen=True):
    template: Template = Template()


class Templated(Object, frozen=True):
    """Represent an object that makes pods from a template."""

    spec: TemplateSpec = TemplateSpec()

    @property
    def image(self) -> str:
        return self.spec.template.spec.containers[0].image if self.spec.template.spec.containers else ""

    @property
    def tag(self) -> str:
        """Return the tag of the first container's image; "" if the image has a digest or no tag."""
        name, at, _ = self.image.partition("@")
        _, colon, tag = name.rpartition(":")
        return tag if colon and "/" not in tag and not at else ""


class DeploymentSpec(TemplateSpec, frozen=True):
    replicas: int = 1


class DeploymentStatus(Wire, frozen=True):
    observed_generation: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    replicas: int = 0


class Deployment(Templated, frozen=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def rolling(self) -> bool:
        """Report whether a rollout is in progress, or the controller has not seen the change yet."""
        status = self.status
        wanted = self.spec.replicas
        return (
            status.observed_generation < self.metadata.generation
            or status.updated_replicas < wanted
            or status.replicas > status.updated_replicas
        )


class DaemonSetStatus(Wire, frozen=True):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(Templated, frozen=True):
    status: DaemonSetStatus = DaemonSetStatus()

    @property
    def rolling(self) -> bool:
        """Report whether a rollout is in progress, or the controller has not seen the change yet."""
        status = self.status
        behind = status.updated_number_scheduled < status.desired_number_scheduled
        return behind or status.observed_generation < self.metadata.generation


# ---- who leads, and where the Service points


class Lease(kube.Lease, frozen=True):
    @property
    def holder(self) -> str:
        """Return the replica's name, without the suffix that central adds for each start (central.daemon.lease.Election)."""
        return (self.spec.holder_identity or "").rpartition("_")[0] or (self.spec.holder_identity or "")

    def age_s(self, now: datetime) -> float | None:
        return (now - parse_time(self.spec.renew_time)).total_seconds() if self.spec.renew_time else None


class Endpoint(Wire, frozen=True):
    addresses: tuple[str, ...] = ()


class EndpointSlice(Object, frozen=True):
    endpoints: tuple[Endpoint, ...] | None = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for one in self.endpoints or () for address in one.addresses)


# ---- the resource, and admission


class CrdVersion(Wire, frozen=True):
    name: str = ""
    served: bool = False
    schema: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def status_fields(self) -> frozenset[str]:
        """Return the names of the status fields in the schema; the API server drops all other status fields."""
        schema: Any = self.schema
        for key in ("openAPIV3Schema", "properties", "status", "properties"):
            schema = schema.get(key) if isinstance(schema, dict) else None
        return frozenset(schema) if isinstance(schema, dict) else frozenset()


class CrdSpec(Wire, frozen=True):
    versions: tuple[CrdVersion, ...] = ()


class CrdStatus(Wire, frozen=True):
    """Hold the status of a CustomResourceDefinition. Both fields are null until the API server has processed a new
    definition."""

    conditions: tuple[request.Condition, ...] | None = None
    stored_versions: tuple[str, ...] | None = None


class Crd(Object, frozen=True):
    spec: CrdSpec = CrdSpec()
    status: CrdStatus = CrdStatus()

    @property
    def established(self) -> bool:
        return is_true(self.status.conditions or (), "Established")

    def version(self, name: str) -> CrdVersion | None:
        return next((one for one in self.spec.versions if one.name == name), None)


class Warning_(Wire, frozen=True):  # noqa: N801  Python has a Warning
    field_ref: str = ""
    warning: str = ""


class TypeChecking(Wire, frozen=True):
    expression_warnings: tuple[Warning_, ...] = ()


class PolicyStatus(Wire, frozen=True):
    type_checking: TypeChecking | None = None


class Policy(Object, frozen=True):
    """Represent a ValidatingAdmissionPolicy."""

    status: PolicyStatus = PolicyStatus()

    @property
    def warnings(self) -> tuple[Warning_, ...]:
        return self.status.type_checking.expression_warnings if self.status.type_checking else ()


class PolicyBindingSpec(Wire, frozen=True):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class PolicyBinding(Object, frozen=True):
    spec: PolicyBindingSpec = PolicyBindingSpec()


# ---- nodes


class NodeInfo(api.NodeInfo, frozen=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(api.NodeStatus, frozen=True):
    node_info: NodeInfo = NodeInfo()


class Node(api.Node, frozen=True):
    """Extend central's Node by the versions of kubelet and container runtime."""

    status: NodeStatus = NodeStatus()

    def is_true(self, condition: str) -> bool:
        return is_true(self.status.conditions, condition)


class ManagedFields(Wire, frozen=True):
    subresource: str = ""
    time: str = ""


class ReportMetadata(AnnotatedMetadata, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class Report(nodedevices.NodeDevices, frozen=True):
    """Extend NodeDevices by the time of its last change. The API server does not record a report that changes nothing."""

    metadata: ReportMetadata

    @property
    def changed_at(self) -> datetime | None:
        times = [one.time for one in self.metadata.managed_fields if one.subresource == "status" and one.time]
        return parse_time(max(times)) if times else None


# ---- pods


class Owner(Wire, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool = False


class PodMetadata(request.PodMetadata, frozen=True):
    owner_references: tuple[Owner, ...] = ()


class Pod(request.Pod, frozen=True):
    """Extend central's Pod by its owner references."""

    metadata: PodMetadata

    @property
    def full_name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def controller(self) -> Owner | None:
        return next((owner for owner in self.metadata.owner_references if owner.controller), None)

    @property
    def why_bound_to_its_node(self) -> str:
        """Return why the pod can only run on its node, as text; empty for a pod that can run on other nodes."""
        owner = self.controller
        if MIRROR in self.metadata.annotations:
            return "it is a static pod of its node"
        return f"it belongs to {owner.kind} {owner.name}" if owner is not None and owner.kind in _BOUND_TO_ITS_NODE else ""

    def started_s(self, now: datetime) -> float:
        """Return the seconds since kubelet first saw the pod; 0 before that."""
        started = self.status.start_time
        return (now - parse_time(started)).total_seconds() if started else 0.0


class Waiting(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Wire, frozen=True):
    waiting: Waiting | None = None


class ContainerStatus(request.Actual, frozen=True):
    state: ContainerState = ContainerState()


class FullStatus(request.Status, frozen=True):
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        """Keep all conditions, unlike the parent class."""


class FullPod(Pod, frozen=True):
    """Extend Pod by its volumes, all conditions, and the states of its containers, which show why it does not run."""

    spec: PodSpec = PodSpec()
    status: FullStatus = FullStatus()

    @property
    def ready(self) -> bool:
        return is_true(self.status.conditions, "Ready")

    def condition(self, kind: str) -> request.Condition | None:
        return next((one for one in self.status.conditions if one.type == kind), None)


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time."""
    return datetime.fromisoformat(text).astimezone(UTC)
