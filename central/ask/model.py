"""What a pod asks for, as one value. Two pods of one template ask the same thing: an Ask is compared and hashed."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """When a container runs (KEP-753): an init container ends before the next begins; a sidecar is an init container that
    stays (restartPolicy Always); app containers run together with all sidecars."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Policy(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of one card. Memory by amount, or (`memory_mib` None) the same percentage as the compute."""

    memory_mib: int | None = None
    core_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    name: str
    role: Role = Role.APP
    gpus: int = 0  # whole cards
    share: Share | None = None  # of one card
    vfs: int = 0

    @property
    def empty(self) -> bool:
        return not self.gpus and self.share is None and not self.vfs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Containers in the order in which kubelet starts them: init containers and sidecars as written, then apps. Those that ask
    for nothing are left out."""

    containers: tuple[ContainerAsk, ...]
    policy: Policy | None = None  # None: the cluster's default
    gpu_model: str = ""  # as the node reports it; "" is any
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
