"""Define a pod's device request as a hashable value. Pods of one template have equal requests.

Tests: tests/unit/central/request/test_own.py
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from central.request.reasons import OfPod
from lading.devices.isolation import IsolationName


class Role(StrEnum):
    """Classify a container by the time when it runs (KEP-753). An init container ends before the next container starts. A
    sidecar is an init container that keeps running (restartPolicy Always). App containers run together with all sidecars."""

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
    """Decide whether a container's whole cards must be exactly the cards of one NVSwitch partition."""

    HONOR = "honor"  # a node without such free cards does not fit
    PREFER = "prefer"  # such cards are preferred; other cards are allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Request an equal part of each of `cards` cards. If `memory_mib` and `memory_percent` are None, the share's percentage of
    memory equals its percentage of compute. Whether a share fits does not depend on the limit."""

    memory_mib: int | None = None
    memory_percent: int | None = None  # percentage of the card's usable memory, in place of MiB
    core_percent: int | None = None
    core_limit_percent: int | None = None  # maximum compute while other shares leave it unused; None: the isolation's default
    cards: int = 1  # number of different cards

    @property
    def percent(self) -> int:
        """Return the larger of the percentages of compute and of memory; 0 if there is none."""
        return max(self.core_percent or 0, self.memory_percent or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    name: str
    role: Role = Role.APP
    gpus: int = 0  # whole cards
    share: Share | None = None
    vfs: int = 0
    gang_member: bool = False  # the container requests no device, only that the pod starts with its gang

    @property
    def empty(self) -> bool:
        return not self.gpus and self.share is None and not self.vfs


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Sharing:
    """Restrict the pods that share a card with this pod. Labels apply within their namespace only, so that one tenant can
    neither attract nor block pods of another."""

    namespace: str
    affinity: str = ""  # label of pods with all shares on the same card; empty, as below: no such rule
    anti_affinity: str = ""  # label of pods of which at most one is on a card
    exclusion: str = ""  # label of pods that share their card only with one another


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Hold a pod's device request. Containers are in the order in which kubelet starts them: init containers and sidecars as
    written, then apps. Containers without a request are left out. A gang member that requests no device has no containers."""

    containers: tuple[ContainerRequest, ...]
    policy: Policy | None = None  # None: the cluster's default
    gpu_models: tuple[str, ...] = ()  # allowed models as nodes report them, sorted; empty: any
    mig_profile: str = ""  # such as "1g.10gb": `gpus` counts MIG instances of this profile; empty: whole cards
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    partition: PartitionPolicy | None = None  # None: the cluster's default
    sharing: Sharing | None = None  # labels of the pod's shares; a whole card is never shared
    isolation: IsolationName | None = None  # isolation of the pod's shares; None: the node's default
    same_card: bool = False  # all shares of the pod are on one card
    _hash: int = field(init=False, repr=False, compare=False)  # cached, because each decision hashes the request eight times

    def __post_init__(self) -> None:
        shown = self.containers, self.policy, self.gpu_models, self.mig_profile, self.rdma_policy, self.scope
        object.__setattr__(self, "_hash", hash((*shown, self.partition, self.sharing, self.isolation, self.same_card)))

    def __hash__(self) -> int:
        return self._hash


class CpuMemory(NamedTuple):
    """Hold a pod's requests for cpu and memory. They are not part of DeviceRequest, because they do not decide whether devices
    fit."""

    cpu_milli: int = 0
    memory_mib: int = 0


NO_CPU_MEMORY: Final = CpuMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Hold a pod's requests for devices, cpu and memory, as the policy fragmentation uses them. Pods of one template have equal
    shapes."""

    request: DeviceRequest
    cpu_memory: CpuMemory = NO_CPU_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedRequest:
    message: str
    unread: bool = False  # the request is to another system, whose pods central does not read

    @property
    def shown(self) -> str:
        """Return the message that kube-scheduler shows."""
        return OfPod.REQUEST_MALFORMED.about(self.message)


Amount = TypeVar("Amount", int, float)


def at_one_time(containers: Iterable[ContainerRequest], amount: Callable[[ContainerRequest], Amount]) -> Amount:
    """Return the peak sum of `amount` over the containers that run at the same time."""
    return most_at_one_time((amount(one), one.role) for one in containers)


def most_at_one_time(amounts: Iterable[tuple[Amount, Role]]) -> Amount:
    """Return the peak sum of the amounts of containers that run at the same time (KEP-753). The amounts are in starting order,
    each with its container's role. Example: an init container with 4 and an app container with 3 peak at 4."""
    stay: Amount = 0
    most: Amount = 0
    for amount, role in amounts:
        if role is Role.INIT:
            most = max(most, stay + amount)
        else:
            stay += amount
    return max(most, stay)
