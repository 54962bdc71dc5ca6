"""Define `NodeDevices`: the devices of a node and their holders, written by the node's reporter and read by central.

Each node has one cluster-scoped object (`devices.lading.dev/v1alpha1`, name = node). All data of the node are in `status`,
which is a subresource: the right to report is not the right to label, annotate or delete. Cordons, which a person sets, are in
`metadata.annotations`. Keys are camelCase on the wire. Absent and default mean the same. Unknown keys are ignored, so that an
older reader can read the object of a newer node.

GPUs are identified by UUID, functions by PCI address. The object has facts, not conclusions: `path` lists the bridges above
a device, and the reader finds out which devices share a switch. Sizes are in MiB, shares of compute in percent.

Tests: tests/unit/deploy/test_nodedevices.py
"""

from typing import Annotated, Final, NamedTuple, Self

import msgspec

from lading.devices.identity import MemorySpan
from lading.devices.isolation import MPS_CLIENTS
from lading.kube.objects import AnnotatedMetadata
from lading.kube.resource import NODE_DEVICES
from lading.vocabulary import GpuUuid, PciAddress, PodUid

GROUP: Final = NODE_DEVICES.group
VERSION: Final = NODE_DEVICES.version
KIND: Final = "NodeDevices"
PLURAL: Final = NODE_DEVICES.plural
MOST_MIB: Final = 1 << 30  # 1 PiB: so that sums, and products with percentages, stay within 64 bits
_NO_MEMORY: Final = "no memory that could be given"


Mib = Annotated[int, msgspec.Meta(ge=0, le=MOST_MIB)]
EVERYTHING: Final = "all"  # a cordon of all devices of the node


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Define the encoding of all parts of the object."""


class Place(_Wire, frozen=True):
    """Represent the place of a PCI function. Unknown values are absent: an absent `numa` is unknown, not node 0."""

    path: tuple[str, ...] = ()  # host bridge first: "pci0000:17", then each bridge's PCI address, without the function
    numa: int | None = None
    socket: int | None = None


class MigInstance(_Wire, frozen=True):
    """Represent a MIG instance or, with `slices`, a position where the node makes one on demand
    (lading.devices.identity.position_name)."""

    uuid: str  # MIG-…
    gpu_instance: int  # id of the GPU instance; for a position, its first memory slice
    compute_instance: int
    memory_mib: Mib = msgspec.field(name="memoryMiB")
    profile: str = ""  # such as 1g.10gb; absent if the driver does not report it
    slices: int = 0  # memory slices of the card that a position takes; 0: an existing instance

    @property
    def span(self) -> MemorySpan | None:
        return MemorySpan(self.gpu_instance, self.slices) if self.slices else None

    def overlaps(self, other: "MigInstance") -> bool:
        """Return whether both are positions that take the same memory: only one has an instance at a time."""
        return self.span is not None and other.span is not None and self.span.overlaps(other.span)


class NvLink(_Wire, frozen=True):
    """Count the links between this GPU and one peer, or an NVSwitch if `to` is empty."""

    count: int
    to: GpuUuid = GpuUuid("")


SHARES_PER_GPU: Final = MPS_CLIENTS  # default for nodes that do not report `max_shares`


class Gpu(_Wire, frozen=True):
    uuid: GpuUuid
    bdf: PciAddress
    model: str
    memory_mib: Mib = msgspec.field(name="memoryMiB")
    reserved_mib: Mib = msgspec.field(name="reservedMiB", default=0)  # memory that the driver itself takes
    module_id: int | None = None  # number on an NVSwitch board, 1-based, as Fabric Manager counts
    links: tuple[NvLink, ...] = ()
    max_shares: int = SHARES_PER_GPU  # maximum containers that have a share of the card at a time
    place: Place = Place()
    mig_enabled: bool = False
    mig: tuple[MigInstance, ...] = ()
    unhealthy: str = ""  # reason; absent if healthy
    used_by: str = ""  # process or pod that uses the card without a grant, in words
    dirty: str = ""  # why no pod gets a card that no grant holds, in words: the card is not clean (yet)

    def __post_init__(self) -> None:
        """Mark a card as unhealthy if the driver's own part leaves no memory, even if its node reports it as healthy."""
        if self.usable_mib <= 0 and not self.unhealthy:
            msgspec.structs.force_setattr(self, "unhealthy", _NO_MEMORY)

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserved_mib


class Partition(_Wire, frozen=True):
    """Represent GPUs of the node that NVSwitches can connect separately from all others."""

    id: int  # id of Fabric Manager
    modules: tuple[int, ...]  # module ids


class Vf(_Wire, frozen=True):
    bdf: PciAddress
    driver: str = ""
    unhealthy: str = ""


MOST_RAIL: Final = 127  # a node reports 128 PFs at most


class Pf(_Wire, frozen=True):
    bdf: PciAddress
    driver: str = ""
    netdev: str = ""
    ibdev: str = ""
    link_layer: str = ""
    place: Place = Place()
    rail: int | None = None  # PFs of one rail are on one leaf switch, on whatever node; None: not known
    unhealthy: str = ""
    vfs: tuple[Vf, ...] = ()


class GrantedGpu(_Wire, frozen=True):
    uuid: GpuUuid
    mig_uuid: str = ""
    memory_mib: Mib | None = msgspec.field(name="memoryMiB", default=None)
    core_percent: int | None = None
    core_limit_percent: int | None = None
    isolation: str = ""  # isolation of a share; absent: none
    pod_wide: bool = False  # equal shares of the same pod are one share, counted once
    pod_memory_mib: Mib | None = msgspec.field(name="podMemoryMiB", default=None)  # pod's amount, not the sum
    pod_core_percent: int | None = None

    @property
    def whole(self) -> bool:
        return not self.mig_uuid and self.memory_mib is None and self.core_percent is None


class Grant(_Wire, frozen=True):
    """Represent the devices that one container holds by the node's ledger."""

    pod: PodUid
    container: str
    namespace: str = ""
    pod_name: str = ""
    form: str = ""  # signed, unsigned or manual
    gen: int = 0
    gpus: tuple[GrantedGpu, ...] = ()
    vfs: tuple[PciAddress, ...] = ()


class Past(_Wire, frozen=True):
    """Represent a previous holder of a device."""

    device: str  # UUID of a GPU or MIG instance, PCI address of a VF
    pod: PodUid
    container: str
    since: int  # Unix seconds
    until: int
    namespace: str = ""
    pod_name: str = ""
    by: str = ""  # form of the decision: signed, unsigned or manual


class ContainerUse(_Wire, frozen=True):
    """Represent the memory that one container uses of a card, rounded like the card's. All containers that hold the card are
    listed if the node can tell them apart, so the use of an absent container is unknown."""

    pod: PodUid
    container: str
    memory_used_mib: Mib = msgspec.field(name="memoryUsedMiB")
    mig_uuid: str = ""


class Use(_Wire, frozen=True):
    """Represent the use of one GPU as its driver reports it, rounded coarsely so that it seldom changes. Values that a card
    does not report are absent."""

    uuid: GpuUuid
    memory_used_mib: Mib | None = msgspec.field(name="memoryUsedMiB", default=None)
    busy_percent: int | None = None  # percent of the driver's last sample period
    containers: tuple[ContainerUse, ...] = ()


class ShareBypass(_Wire, frozen=True):
    """Represent a container that does not keep to its share of a card."""

    pod: PodUid
    uuid: GpuUuid
    container: str = ""  # absent: unknown, or all containers of the pod have the share together
    namespace: str = ""
    pod_name: str = ""
    why: str = ""  # reason, in words


class Summary(_Wire, frozen=True):
    """Hold the columns of `kubectl get nodedevices`."""

    gpus: str = ""  # healthy/all
    models: str = ""
    vfs: str = ""  # usable/all
    held: str = ""  # GPUs and VFs that are held, in words: "3 GPUs, 2 VFs"
    problems: str = ""


class Status(_Wire, frozen=True):
    reporter: str = ""  # version of lading-hooks
    boot_id: str = msgspec.field(name="bootID", default="")
    driver: str = ""  # version of the cards' driver
    reconciled: bool = False  # the grants were compared with the container runtime since the reporter's start
    isolations: tuple[str, ...] = ()  # ways to enforce shares on the node, its default first; absent: none
    gpus: tuple[Gpu, ...] = ()
    pfs: tuple[Pf, ...] = ()
    partitions: tuple[Partition, ...] = ()  # partitions of the NVSwitches, if the node's configuration names its board
    grants: tuple[Grant, ...] = ()
    past: tuple[Past, ...] = ()  # last few holders of each device, newest first
    use: tuple[Use, ...] = ()
    used_at: int = 0  # time at which the driver reported `use`, Unix seconds; 0: not reported
    share_bypasses: tuple[ShareBypass, ...] = ()
    problems: tuple[str, ...] = ()  # parts that could not be read, in words
    summary: Summary = Summary()


class NodeDevices(_Wire, frozen=True):
    metadata: AnnotatedMetadata
    status: Status = Status()


def is_other_boot(one: str, other: str) -> bool:
    """Return whether both boot ids are known and differ: facts of one boot may not hold in the other."""
    return bool(one and other) and one != other


class Cordon(NamedTuple):
    """Represent the cordon of a node's devices, as a person writes it on the object: names with commas between them, or
    "all"."""

    entries: tuple[str, ...] = ()  # entries as a person wrote them
    names: frozenset[str] = frozenset()  # the entries in lower case

    @classmethod
    def parse(cls, written: str) -> Self:
        entries = tuple(name for part in written.split(",") if (name := part.strip()))
        return cls(entries, frozenset(name.lower() for name in entries))

    def covers(self, *names: str) -> bool:
        """Return whether everything is cordoned, or the device with these names."""
        return bool(self.names) and (EVERYTHING in self.names or any(name.lower() in self.names for name in names))
