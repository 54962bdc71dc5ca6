"""Define the ledger's values: pod records, claims, the free capacity of nodes and cards, and refusals of claims."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from central.api.cached_objects import is_number
from central.assignment.model import Admitted, Taken
from central.assignment.sharing import UNLABELLED, Labels, together
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.devices.isolation import IsolationName
from lading.nodedevices import Gpu, Partition, Pf, Vf
from lading.vocabulary import GpuUuid, PciAddress, PodUid

ONE_EACH: Final[Mapping[GpuUuid, int]] = MappingProxyType(
    {}
)  # shared value, because nearly every pod has one container on each of its cards

_NONE: Final = (IsolationName.NONE,)

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class NodeFacts(NamedTuple):
    ready: bool = False  # whether kubelet reports
    boot_id: str = ""  # empty: it does not say
    allocatable: CpuMemory | None = None  # None: it does not say
    unschedulable: bool = False  # kubectl cordon, for views; kube-scheduler itself leaves the node out


NO_NODE: Final = NodeFacts()


class Claim(StrEnum):
    """Name the reason why a pod holds a device. The device is free when the last reason has ended."""

    PREDICTED = "predicted"  # devices of a filtered pod that is not bound yet; ends after a moment
    NOMINATED = "nominated"  # devices that a preemption frees for a pod
    PLANNED = "planned"  # devices of a gang's member, in a plan with devices for all members
    RESERVED = "reserved"  # Binding under way, or with an unknown outcome
    BOUND = "bound"  # assignment of a bound pod
    GRANTED = "granted"  # grants in the node's report
    LINGERING = "lingering"  # pod or grant that was removed while the node was not reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCapacity:
    """Represent one card and its free capacity, as the search for devices reads it."""

    gpu: Gpu
    free_mib: int
    free_core: int
    pods: int  # number of pods that hold something of the card
    containers: int  # containers of these pods on this card: the load of the policy `spread`
    usable: bool  # healthy, clean, not cordoned, not used without a grant
    free_mig: tuple[str, ...] = ()  # free MIG instances
    sharers: tuple[Labels, ...] = ()  # different labels of the card's pods; empty if no pod has a label
    isolations: tuple[str, ...] = ()  # different isolations of the card's shares; empty if all are `none`

    @property
    def free(self) -> bool:
        """Return whether no pod holds anything of the card, and the card may be given."""
        return self.usable and self.pods == 0 and not self.gpu.mig_enabled

    def has_free(self, memory_mib: int, core_percent: int) -> bool:
        """Return whether this much of the card may be given to one more pod."""
        return self.usable and memory_mib <= self.free_mib and core_percent <= self.free_core

    def admits(self, labels: Labels) -> bool:
        """Return whether a share of a pod with these labels may be beside the shares of the card's pods. The place of an
        affinity group, and free capacity, are not checked."""
        if not self.pods or not (labels or self.sharers):
            return True
        return all(together(labels, others) for others in self.sharers or (UNLABELLED,))

    def joins(self, isolation: str) -> bool:
        """Return whether a share with this isolation may be beside the shares of the card's pods."""
        return not self.pods or (self.isolations or _NONE) == (isolation,)


@dataclass(frozen=True, slots=True, kw_only=True)
class VfCapacity:
    vf: Vf
    pf: Pf
    usable: bool  # healthy, not cordoned
    free: bool  # usable, and no pod holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """Represent a node's free capacity at one moment: immutable, so that it can be judged without the ledger, and compared by
    `version`."""

    name: str
    version: int  # version of the node's content in the ledger; grows with each change
    cards: tuple[CardCapacity, ...]
    vfs: tuple[VfCapacity, ...]
    partitions: tuple[Partition, ...] = ()  # NVSwitch partitions, by module id of their GPUs
    isolations: tuple[
        IsolationName, ...
    ] = ()  # isolations of shares that the node offers, its default first; empty: only `none`
    reported: bool = True  # whether the node has a NodeDevices object
    reconciled: bool = True  # whether the node has compared its ledger with its runtime
    reachable: bool = True
    rebooted: bool = False  # whether the node booted after its report
    cpu_milli: int = 0  # free amounts of the allocatable cpu and memory; their changes do not change `version`
    memory_mib: int = 0
    resources_reported: bool = False  # False: the Node does not say

    @property
    def serving(self) -> bool:
        """Return whether the node's free devices may be given."""
        return self.reported and self.reconciled and self.reachable and not self.rebooted

    @property
    def offered(self) -> tuple[IsolationName, ...]:
        """Return the isolations with which the node can give shares, its default first."""
        return self.isolations or _NONE

    def isolation_of(self, requested: IsolationName | None) -> IsolationName:
        """Return the isolation that the shares of a pod have on this node."""
        return requested or self.offered[0]

    def has_resources(self, cpu_memory: CpuMemory) -> bool:
        """Return whether the node has the requested cpu and memory; True if its amounts are not known."""
        enough = cpu_memory.cpu_milli <= self.cpu_milli and cpu_memory.memory_mib <= self.memory_mib
        return enough or not self.resources_reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Identify the pod of a claim, with names for messages."""

    pod: PodUid
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """Record one pod. `version` is its resourceVersion, which can be compared as a number (KEP-5504). Names that thousands of
    pods share are stored once."""

    uid: PodUid
    namespace: str
    name: str
    version: int
    node: str = ""  # name of the node to which the pod is bound
    terminal: bool = False  # phase Succeeded or Failed
    deleting: bool = False
    priority: int = 0
    created: int = 0  # Unix seconds
    taken: Taken | None = None  # devices by an assignment for this uid and this node
    containers: Mapping[GpuUuid, int] = field(default_factory=lambda: ONE_EACH)  # cards with several containers of the pod
    cpu_memory: CpuMemory = NO_CPU_MEMORY
    admitted: Admitted | None = (
        None  # quota of the assignment; None if the assignment names none, so that the pod's labels count
    )
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)  # labels, by which disruption budgets select the pod
    grace_s: int = 30  # seconds that the pod has to end after its deletion
    gang: str | None = ""  # gang of the assignment; empty: bound without a gang; None: the assignment does not say

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespace", sys.intern(self.namespace))
        object.__setattr__(self, "node", sys.intern(self.node))
        if self.gang:
            object.__setattr__(self, "gang", sys.intern(self.gang))
        if self.taken is not None:
            object.__setattr__(self, "taken", _interned(self.taken))

    @property
    def holds(self) -> Taken | None:
        """Return the devices that the pod holds by its assignment; None if the assignment is not valid any more."""
        return self.taken if self.node and not self.terminal else None

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)


class PodLoad(NamedTuple):
    """Hold the cpu and memory that a pod without devices of Lading uses on its node; an empty `node` ends the use."""

    uid: PodUid
    node: str
    cpu_memory: CpuMemory


def version_of(resource_version: str) -> int:
    """Return the version as a number; 0, which is older than every other, if it is not a number."""
    return int(resource_version) if is_number(resource_version) else 0


def _interned(taken: Taken) -> Taken:
    gpus = {GpuUuid(sys.intern(uuid)): part for uuid, part in taken.gpus.items()}
    return Taken(gpus=gpus, vfs=frozenset(map(PciAddress, map(sys.intern, taken.vfs))))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnClaim:
    """Represent a claim that central made itself: a prediction, a nomination, a plan or a reservation."""

    holder: Holder
    node: str
    taken: Taken
    until: float = math.inf  # end by the creator's clock; a reservation ends only by its outcome
    gen: int = 0  # generation of the assignment in the Binding
    confirmed: bool = False  # whether the Binding is known to have succeeded
    victims: frozenset[PodUid] = frozenset()  # pods whose end a nomination waits for
    evicts: bool = True  # whether a nomination's victims are evicted; otherwise they end by themselves
    cpu_memory: CpuMemory = NO_CPU_MEMORY
    labels: Mapping[str, str] | None = None  # labels of a deleted pod, in whose quota the claim counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Represent the devices that one pod holds on one node, with the claims."""

    holder: Holder
    claims: Mapping[Claim, Taken]
    taken: Taken  # all claims together: the largest of each device, not the sum
    record: PodRecord | None = None  # None: central has not observed the pod, or it was deleted

    @property
    def since(self) -> int:
        """Return the pod's creation, in Unix seconds; 0 is unknown."""
        return self.record.created if self.record else 0


class Obstacle(StrEnum):
    """Name the reason why a device cannot be claimed."""

    POD_ENDED = "pod-ended"  # terminal or deleted
    POD_BOUND = "pod-bound"
    RESERVED = "reserved"  # reservation of the same pod for other devices, whose Binding may still succeed
    NODE = "node"  # not reported, not reconciled or not reachable
    DEVICE = "device"  # missing, not usable, or held by another pod
    GROUP = "group"  # the pod's affinity group has another card


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Report why a claim was refused. A refused claim changes nothing."""

    obstacle: Obstacle
    device: str = ""
    holders: tuple[Holder, ...] = ()  # holders of the device or of the reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Report pods that hold one device by their assignments or the node's grants, and cannot all have it."""

    node: str
    device: str
    pods: tuple[PodUid, ...]  # pods that the API server lacks come first, pods without a grant last, of these the youngest last
    exclusive: bool  # whether a pod should have the device alone; otherwise shares add up to too much
