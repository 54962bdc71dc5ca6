"""Define a pod's device request as one value, which is compared and hashed: pods of one template have equal requests."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from central.request.reasons import OfPod
from lading.devices.isolation import IsolationName


class Role(StrEnum):
    """Say when a container runs (KEP-753): an init container ends before the next begins; a sidecar is an init container that
    stays (restartPolicy Always); app containers run together with all sidecars."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Policy(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"
    FRAGMENTATION = "fragmentation"


class RdmaPolicy(StrEnum):
    NEAREST = "nearest"
    PER_SWITCH = "per-switch"
    PER_PF = "per-pf"
    COUNT = "count"


class Scope(StrEnum):
    SWITCH = "switch"
    NUMA = "numa"
    SOCKET = "socket"
    ANY = "any"


class PartitionPolicy(StrEnum):
    """Say whether a container's whole cards must be exactly those of one NVSwitch partition."""

    HONOR = "honor"  # or the node does not fit
    PREFER = "prefer"  # where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Request an equal part of each of some cards. Memory by amount, or (`memory_mib` None) the same percentage as the compute.
    Whether it fits does not depend on the limit."""

    memory_mib: int | None = None
    core_percent: int | None = None
    core_limit_percent: int | None = None  # of the compute, while others leave it; None: what the isolation does
    cards: int = 1  # different ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    name: str
    role: Role = Role.APP
    gpus: int = 0  # whole cards
    share: Share | None = None
    vfs: int = 0
    gang_member: bool = False  # it asks for no device, and says that the pod starts with its gang

    @property
    def empty(self) -> bool:
        return not self.gpus and self.share is None and not self.vfs


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Sharing:
    """Restrict which pods share a card with this pod. Labels apply within their namespace only: pods of two namespaces with
    the same text have nothing in common, so that one tenant can neither attract nor block pods of another."""

    namespace: str
    affinity: str = ""  # all shares of pods with this one are on one card; empty, as below: not asked
    anti_affinity: str = ""  # of pods with this one there is at most one on a card
    exclusion: str = ""  # its card has shares of pods with this one only


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Hold a pod's device request. Containers are in the order in which kubelet starts them: init containers and sidecars as
    written, then apps. Containers without a request are left out. A member of a gang that asks for no device has none."""

    containers: tuple[ContainerRequest, ...]
    policy: Policy | None = None  # None: the cluster's default
    gpu_models: tuple[str, ...] = ()  # one of these, as the node reports them, sorted; none: any
    mig_profile: str = ""  # "1g.10gb": `gpus` are so many MIG instances of that profile; "": whole cards
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    partition: PartitionPolicy | None = None  # None: the cluster's default
    sharing: Sharing | None = None  # of the shares; a whole card is not shared
    isolation: IsolationName | None = None  # of the shares; None: the default of the node
    _hash: int = field(init=False, repr=False, compare=False)  # each decision looks it up eight times

    def __post_init__(self) -> None:
        shown = self.containers, self.policy, self.gpu_models, self.mig_profile, self.rdma_policy, self.scope
        object.__setattr__(self, "_hash", hash((*shown, self.partition, self.sharing, self.isolation)))

    def __hash__(self) -> int:
        return self._hash


class CpuMemory(NamedTuple):
    """Hold the pod's requests for cpu and memory. They are not in a DeviceRequest, because whether devices fit does not depend
    on them."""

    cpu_milli: int = 0
    memory_mib: int = 0


NO_CPU_MEMORY: Final = CpuMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Hold what the policy fragmentation uses of a pod. Pods of one template have one shape."""

    request: DeviceRequest
    cpu_memory: CpuMemory = NO_CPU_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedRequest:
    message: str

    @property
    def shown(self) -> str:
        """Return the message that kube-scheduler shows."""
        return OfPod.REQUEST_MALFORMED.about(self.message)
