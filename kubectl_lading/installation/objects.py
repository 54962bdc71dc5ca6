"""The fields of the API server's objects that say whether an installation is well; msgspec skips the rest.

Frozen, keys camelCase on the wire, absent and default mean the same. Nodes, reports and pods are central's own types with a few
fields more, so that one list is enough for both.

Source: k8s.io/api apps/v1, coordination/v1, discovery/v1, admissionregistration/v1, apiextensions/v1, core/v1, as of v1.36.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from central.api import objects as api
from central.ask import pod as ask
from kubectl_lading import owners
from lading import nodedevices


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that all parts of an object share."""


class Meta(_Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    generation: int = 0
    labels: dict[str, str] = {}


class Condition(_Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


# ---- Deployments


class ConfigMapVolume(_Wire, frozen=True):
    name: str = ""


class SecretVolume(_Wire, frozen=True):
    secret_name: str = ""


class Volume(_Wire, frozen=True):
    name: str = ""
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None


class Container(_Wire, frozen=True):
    name: str = ""
    image: str = ""


class PodSpec(_Wire, frozen=True):
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Template(_Wire, frozen=True):
    spec: PodSpec = PodSpec()


class DeploymentSpec(_Wire, frozen=True):
    replicas: int = 1
    template: Template = Template()


class DeploymentStatus(_Wire, frozen=True):
    observed_generation: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    replicas: int = 0


class Deployment(_Wire, frozen=True):
    metadata: Meta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def image(self) -> str:
        return self.spec.template.spec.containers[0].image if self.spec.template.spec.containers else ""

    @property
    def tag(self) -> str:
        """Return the tag of the image; "" if it has a digest or no tag."""
        name, at, _ = self.image.partition("@")
        _, colon, tag = name.rpartition(":")
        return tag if colon and "/" not in tag and not at else ""

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


# ---- who leads, and where the Service points


class LeaseSpec(_Wire, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int = 0
    renew_time: str | None = None


class Lease(_Wire, frozen=True):
    metadata: Meta
    spec: LeaseSpec = LeaseSpec()

    @property
    def holder(self) -> str:
        """Return the replica's name, without the suffix that central adds for each start (central.daemon.lease.Election)."""
        return (self.spec.holder_identity or "").rpartition("_")[0] or (self.spec.holder_identity or "")

    def age_s(self, now: datetime) -> float | None:
        return (now - parse_time(self.spec.renew_time)).total_seconds() if self.spec.renew_time else None


class Endpoint(_Wire, frozen=True):
    addresses: tuple[str, ...] = ()


class EndpointSlice(_Wire, frozen=True):
    metadata: Meta
    endpoints: tuple[Endpoint, ...] | None = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for one in self.endpoints or () for address in one.addresses)


class SystemPodStatus(_Wire, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")


class SystemPod(_Wire, frozen=True):
    """A pod of Lading's own namespace."""

    metadata: Meta
    status: SystemPodStatus = SystemPodStatus()


# ---- the resource, and admission


class CrdVersion(_Wire, frozen=True):
    name: str = ""
    served: bool = False
    storage: bool = False
    schema: dict[str, Any] = {}

    @property
    def status_fields(self) -> frozenset[str]:
        """Return the names of the status fields; the API server drops all others."""
        found: Any = self.schema
        for key in ("openAPIV3Schema", "properties", "status", "properties"):
            found = found.get(key) if isinstance(found, dict) else None
        return frozenset(found) if isinstance(found, dict) else frozenset()


class CrdSpec(_Wire, frozen=True):
    versions: tuple[CrdVersion, ...] = ()


class CrdStatus(_Wire, frozen=True):
    """The status of a CustomResourceDefinition. Both fields are null until the API server has processed a new one."""

    conditions: tuple[Condition, ...] | None = None
    stored_versions: tuple[str, ...] | None = None


class Crd(_Wire, frozen=True):
    metadata: Meta
    spec: CrdSpec = CrdSpec()
    status: CrdStatus = CrdStatus()

    @property
    def established(self) -> bool:
        return any(one.type == "Established" and one.status == "True" for one in self.status.conditions or ())

    def version(self, name: str) -> CrdVersion | None:
        return next((one for one in self.spec.versions if one.name == name), None)


class Warning_(_Wire, frozen=True):  # noqa: N801  Python has a Warning
    field_ref: str = ""
    warning: str = ""


class TypeChecking(_Wire, frozen=True):
    expression_warnings: tuple[Warning_, ...] = ()


class PolicyStatus(_Wire, frozen=True):
    type_checking: TypeChecking | None = None


class Policy(_Wire, frozen=True):
    """A ValidatingAdmissionPolicy."""

    metadata: Meta
    status: PolicyStatus = PolicyStatus()

    @property
    def warnings(self) -> tuple[Warning_, ...]:
        return self.status.type_checking.expression_warnings if self.status.type_checking else ()


class PolicyBindingSpec(_Wire, frozen=True):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class PolicyBinding(_Wire, frozen=True):
    metadata: Meta
    spec: PolicyBindingSpec = PolicyBindingSpec()


# ---- nodes


class NodeInfo(_Wire, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(api.NodeStatus, frozen=True):
    node_info: NodeInfo = NodeInfo()


class Node(api.Node, frozen=True):
    """A node as central reads it, with its versions."""

    status: NodeStatus = NodeStatus()

    def is_true(self, condition: str) -> bool:
        return any(one.type == condition and one.status == "True" for one in self.status.conditions)


class ManagedFields(_Wire, frozen=True):
    manager: str = ""
    subresource: str = ""
    time: str = ""


class ReportMetadata(nodedevices.Metadata, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class Report(nodedevices.NodeDevices, frozen=True):
    """A NodeDevices object, and when it changed last: a report that changes nothing is not recorded."""

    metadata: ReportMetadata

    @property
    def changed_at(self) -> datetime | None:
        times = [one.time for one in self.metadata.managed_fields if one.subresource == "status" and one.time]
        return parse_time(max(times)) if times else None


# ---- pods


class PodStatus(ask.Status, frozen=True):
    start_time: str | None = None  # when kubelet first saw it


class Pod(owners.Pod, frozen=True):
    status: PodStatus = PodStatus()

    @property
    def full_name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def started_s(self, now: datetime) -> float:
        """Return the seconds since kubelet first saw it; 0 before that."""
        started = self.status.start_time
        return (now - parse_time(started)).total_seconds() if started else 0.0


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time."""
    return datetime.fromisoformat(text).astimezone(UTC)
