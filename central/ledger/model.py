"""Values of the ledger: the record of a pod, why something is held, what a node has left, and what is refused."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from central.api.known import is_number
from central.assignment.model import Admitted, Taken
from central.assignment.sharing import UNLABELLED, Labels, together
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.devices.isolation import IsolationName
from lading.nodedevices import Gpu, Partition, Pf, Vf
from lading.vocabulary import GpuUuid, PciAddress, PodUid

ONE_EACH: Final[Mapping[GpuUuid, int]] = MappingProxyType({})  # shared: nearly every pod has one container on each of its cards

_NONE: Final = (IsolationName.NONE,)

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class NodeFacts(NamedTuple):
    """Hold what a Node object says."""

    ready: bool = False  # kubelet answers
    boot_id: str = ""  # empty: it does not say
    allocatable: CpuMemory | None = None  # None: it does not say
    unschedulable: bool = (
        False  # kubectl cordon: shown to people; kube-scheduler names the node for no pod but those that tolerate it
    )


NO_NODE: Final = NodeFacts()


class Claim(StrEnum):
    """Why the ledger believes that a pod holds something; it is free when the last of these is gone."""

    PREDICTED = "predicted"  # the winner of a filter that has not been bound yet; given up after a moment
    NOMINATED = "nominated"  # room that preemption makes for a pod
    PLANNED = "planned"  # where a member of a gang will be, as all others have a place too
    RESERVED = "reserved"  # central is binding it, or does not know yet how that ended
    BOUND = "bound"  # the pod's annotation says so
    GRANTED = "granted"  # the node's ledger says so
    LINGERING = "lingering"  # the pod or its grant went away while the node was not reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """A card as a fit sees it."""

    gpu: Gpu
    free_mib: int
    free_core: int
    pods: int  # that hold something of it
    containers: int  # of these pods, on this card: the load of the `spread` policy
    usable: bool  # healthy, clean, not cordoned, not used without a grant
    free_mig: tuple[str, ...] = ()  # instances that no pod holds
    sharers: tuple[Labels, ...] = ()  # the different labels of its pods; nothing where none of them has any
    isolations: tuple[str, ...] = ()  # the different ones of its pods' shares; nothing where all of them are none

    @property
    def free(self) -> bool:
        """Return whether no pod holds anything of it, and it may be given."""
        return self.usable and self.pods == 0 and not self.gpu.mig_enabled

    def has_free(self, memory_mib: int, core_percent: int) -> bool:
        """Return whether so much of it may be given to one more pod."""
        return self.usable and memory_mib <= self.free_mib and core_percent <= self.free_core

    def admits(self, labels: Labels) -> bool:
        """Return whether a share of a pod with these labels may be beside those of the card's pods. The place of an affinity
        group, and free capacity, are not checked."""
        if not self.pods or not (labels or self.sharers):
            return True
        return all(together(labels, others) for others in self.sharers or (UNLABELLED,))

    def joins(self, isolation: str) -> bool:
        """Return whether a share with this isolation may be beside those of the card's pods."""
        return not self.pods or (self.isolations or _NONE) == (isolation,)


@dataclass(frozen=True, slots=True, kw_only=True)
class VfRoom:
    vf: Vf
    pf: Pf
    usable: bool  # healthy, not cordoned
    free: bool  # usable, and no pod holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node at one moment: immutable, so that it can be judged without the ledger, and compared by `version`."""

    name: str
    version: int  # of this node's content in the ledger; grows with each change
    cards: tuple[CardRoom, ...]
    vfs: tuple[VfRoom, ...]
    partitions: tuple[Partition, ...] = ()  # GPUs, by module id, that NVSwitches can connect apart from all others
    isolations: tuple[IsolationName, ...] = ()  # of shares, that the node offers, its default first; nothing: none alone
    reported: bool = True  # False: there is no NodeDevices object
    reconciled: bool = True  # the node knows which pods hold what
    reachable: bool = True
    rebooted: bool = False  # since its report
    cpu_milli: int = 0  # of its allocatable, what requests of pods leave; neither is in `version`
    memory_mib: int = 0
    resources_known: bool = False  # False: the Node does not say

    @property
    def serving(self) -> bool:
        """Return whether the node's free devices may be given."""
        return self.reported and self.reconciled and self.reachable and not self.rebooted

    @property
    def offered(self) -> tuple[IsolationName, ...]:
        """Return the isolations with which the node can give shares, its default first."""
        return self.isolations or _NONE

    def isolation_of(self, asked: IsolationName | None) -> IsolationName:
        """Return the isolation that the shares of a pod have here."""
        return asked or self.offered[0]

    def has_resources(self, cpu_memory: CpuMemory) -> bool:
        """Return whether the node has the requested cpu and memory; True if its amounts are not known."""
        enough = cpu_memory.cpu_milli <= self.cpu_milli and cpu_memory.memory_mib <= self.memory_mib
        return enough or not self.resources_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The pod of a claim, by names for people."""

    pod: PodUid
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """The ledger's record of one pod. `version` is its resourceVersion, which can be compared as a number (KEP-5504). Names
    that thousands of pods have in common are kept once."""

    uid: PodUid
    namespace: str
    name: str
    version: int
    node: str = ""  # where it is bound
    terminal: bool = False  # phase Succeeded or Failed
    deleting: bool = False
    priority: int = 0
    created: int = 0  # Unix seconds
    gen: int = 0  # of its assignment
    taken: Taken | None = None  # by its own assignment: for this uid and this node
    containers: Mapping[GpuUuid, int] = field(default_factory=lambda: ONE_EACH)  # on one card, where not one
    cpu_memory: CpuMemory = NO_CPU_MEMORY
    admitted: Admitted | None = None  # None: its assignment does not say, and its labels count
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)  # by which disruption budgets select it
    grace_s: int = 30  # that it has to end, once it is deleted
    gang: str | None = ""  # with which it was bound, by its assignment; empty: with none; None: it does not say

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespace", sys.intern(self.namespace))
        object.__setattr__(self, "node", sys.intern(self.node))
        if self.gang:
            object.__setattr__(self, "gang", sys.intern(self.gang))
        if self.taken is not None:
            object.__setattr__(self, "taken", _interned(self.taken))

    @property
    def holds(self) -> Taken | None:
        """Return what the pod takes of its node by its assignment, as long as that is valid."""
        return self.taken if self.node and not self.terminal else None

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)


class PodLoad(NamedTuple):
    """The load of a pod without devices of Lading, which uses cpu and memory of its node; no node: not any more."""

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
    """A claim that central made itself: a prediction, a nomination or a reservation."""

    holder: Holder
    node: str
    taken: Taken
    until: float = math.inf  # on the clock of its creator; a reservation has no end but an outcome
    gen: int = 0  # of the assignment that is being bound
    confirmed: bool = False  # the Binding is known to have succeeded
    victims: frozenset[PodUid] = frozenset()  # of a nomination: pods whose end it waits for
    evicts: bool = True  # of a nomination: its victims are evicted; False: they end by themselves
    cpu_memory: CpuMemory = NO_CPU_MEMORY
    labels: Mapping[str, str] | None = None  # of a pod that is gone, and in whose quota this counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The devices that one pod holds on one node, and why."""

    holder: Holder
    claims: Mapping[Claim, Taken]
    taken: Taken  # all claims together: of each device the largest, not the sum
    record: PodRecord | None = None  # None: the API server has no such pod, or has not shown it yet

    @property
    def since(self) -> int:
        """Return the pod's creation, in Unix seconds; 0 is unknown."""
        return self.record.created if self.record else 0


class Obstacle(StrEnum):
    """Why something cannot be claimed."""

    POD_ENDED = "pod-ended"  # terminal, or gone
    POD_BOUND = "pod-bound"
    RESERVED = "reserved"  # the same pod, with another node or other devices: that Binding may still succeed
    NODE = "node"  # not reported, not reconciled or not reachable
    DEVICE = "device"  # not there, not usable, or another pod has what is asked of it
    GROUP = "group"  # the pod's affinity group has another card


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why a claim was refused. A refused claim changes nothing."""

    obstacle: Obstacle
    device: str = ""
    holders: tuple[Holder, ...] = ()  # of the device, or of the reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Pods that hold one device by their assignments or the node's grants, and cannot all have it."""

    node: str
    device: str
    pods: tuple[
        PodUid, ...
    ]  # those without a grant of the node last, of these the youngest; those that the API server does not have first
    exclusive: bool  # one of them should have it alone; else shares that add up to more than there is
