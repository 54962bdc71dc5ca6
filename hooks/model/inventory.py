"""Define the inventory of a node: GPUs, RDMA PFs and VFs, as values. Read by `inventory`, asked by `grant`.

Identity is the GPU's UUID and the function's PCI address. Index, minor, ibdev, netdev and uverbs number renumber at a reboot
or a driver reload, so they are looked up here at the moment of use and never stored.

Tests: tests/unit/hooks/inventory/test_read.py
"""

from dataclasses import dataclass, field
from typing import Final

from hooks.model.cdi import Hook
from lading.devices.isolation import IsolationName
from lading.devices.mig import MemorySpan
from lading.nodedevices import SHARES_PER_GPU
from lading.vocabulary import GpuUuid, PciAddress

# Link layers, as sysfs has them.
ETHERNET: Final = "Ethernet"
INFINIBAND: Final = "InfiniBand"


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """Represent a character device node, checked without following links: what the kernel says it is, and where its node
    lies."""

    path: str  # path in a container: /dev/infiniband/uverbs0
    host_path: str  # path for the runtime: below --host-root
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """Represent an instance; or, on a card that Lading divides, a position for one (lading/devices/mig.py)."""

    uuid: str  # MIG-…; of a position, its name
    gpu_instance: int = -1
    compute_instance: int = -1
    memory_mib: int
    nodes: tuple[CharDevice, ...] = ()  # device nodes of the instance, besides the card's
    profile: str = ""  # size, such as 1g.10gb; empty if the driver does not report it
    span: MemorySpan | None = None  # memory slices of a position
    made_uuid: str = ""  # driver's UUID of the instance at a position; empty without an instance

    @property
    def is_made(self) -> bool:
        return self.span is None or bool(self.made_uuid)

    def overlaps(self, other: "MigInstance") -> bool:
        return self.span is not None and other.span is not None and self.span.overlaps(other.span)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """Hold the number of active links between a GPU and a peer. If `peer` is None, the links are to all NVSwitches."""

    count: int
    peer: PciAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """GPUs between which NVSwitches may be set up, apart from all others."""

    id: int  # Fabric Manager's
    modules: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Represent a process that computes on a card, also by way of an MPS server."""

    pid: int  # in the host's pid namespace
    instance: tuple[int, int] | None = None  # MIG: its GPU instance and compute instance
    used_mib: int | None = field(default=None, compare=False)  # another number every time; None: the driver does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    uuid: GpuUuid
    vendor: str  # name of the `Vendor` that read it, and injects it
    bdf: PciAddress  # four-digit domain, lower case: 0000:1b:00.0
    index: int  # the driver's, in PCI order; for people, never stored
    minor: int
    model: str
    memory_mib: int  # in all
    reserved_mib: int  # the driver's own part
    numa: int | None  # None is unknown
    node: CharDevice | None  # None with `unhealthy` saying why
    mig: tuple[MigInstance, ...] = ()
    mig_enabled: bool = False
    unhealthy: str = ""  # why, or empty
    processes: tuple[GpuProcess, ...] | None = None  # None: the driver does not tell
    path: tuple[str, ...] = ()  # the bridges above it, from the host bridge (pci0000:17) down
    socket: int | None = None
    module_id: int | None = None  # on an NVSwitch board, as Fabric Manager counts
    links: tuple[NvLink, ...] = ()
    limits_memory: bool = False  # whether the driver was seen to limit a cgroup's use of the card's memory
    compute_mode: str = ""  # driver's name of the compute mode, unless any process may use the card
    drm: tuple[CharDevice, ...] = ()  # /dev/dri/card<N>, renderD<N>, if the node gives them to containers
    binding: int | None = field(default=None, compare=False)  # number of the binding to its driver (`hooks.host.binding`)
    # The use changes with every read and does not make the cards unequal. None: the driver does not report it.
    used_mib: int | None = field(default=None, compare=False)  # without the driver's own part
    uncorrected_errors: int | None = field(default=None, compare=False)  # uncorrected memory errors since the card's last reset
    busy_percent: int | None = field(default=None, compare=False)  # during the driver's last sample; None in MIG mode

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserved_mib

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(sorted({process.pid for process in self.processes or ()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vf:
    bdf: PciAddress
    pf: PciAddress
    index: int  # virtfn<index> of its PF
    driver: str  # mlx5_core, vfio-pci, … or empty
    numa: int | None
    ibdev: str = ""  # mlx5_7
    netdev: str = ""
    link_layer: str = ""
    uverbs: CharDevice | None = None
    umad: tuple[CharDevice, ...] = ()  # umad and issm nodes
    unhealthy: str = ""

    @property
    def problem(self) -> str:
        """Return why no container can use RDMA through it now; an empty string if one can."""
        if self.unhealthy:
            return f"it is not healthy: {self.unhealthy}"
        if self.uverbs is None or not self.ibdev:
            return f"it has no RDMA device (driver: {self.driver or 'none'}); bind it to its RDMA driver, as mlx5_core"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pf:
    bdf: PciAddress
    driver: str
    numa: int | None
    ibdev: str = ""
    netdev: str = ""
    link_layer: str = ""
    total_vfs: int = 0
    vfs: tuple[Vf, ...] = ()
    path: tuple[str, ...] = ()  # the bridges above it and its VFs, from the host bridge down
    socket: int | None = None
    unhealthy: str = ""  # why its VFs reach no peer, or empty
    pcie: str = ""  # the fastest link that it can have: "32.0 GT/s PCIe x16"; empty where sysfs does not tell
    rail: int | None = None  # the leaf switch that it is on, as it is counted on every node; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMount:
    """Represent a file or socket of the host's driver, found below the configured driver root."""

    host_path: str
    container_path: str
    is_socket: bool = False
    seen_at: str = ""  # where this process sees it, if not at `host_path`


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Represent one vendor's driver, as it shows itself; absent where there is none."""

    vendor: str
    version: str
    control: tuple[CharDevice, ...]  # nodes that belong to no card, and those of optional groups: what exists
    mounts: tuple[DriverMount, ...] = ()  # libraries and programs of the driver, if a driver root is configured
    missing: tuple[str, ...] = ()  # files of these that were removed after the reading; not in `mounts`
    group_mounts: tuple[DriverMount, ...] = ()  # files of optional groups that the configuration names
    hooks: tuple[Hook, ...] = ()  # hooks of the driver's CDI specs, if the driver's files need them


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    gpus: tuple[Gpu, ...] = ()
    pfs: tuple[Pf, ...] = ()
    drivers: tuple[Driver, ...] = ()  # one of each vendor
    rdma_cm: CharDevice | None = None
    cdi_names: frozenset[str] = frozenset()  # vendor/class=name of each device that the node's CDI specs define
    partitions: tuple[Partition, ...] = ()  # NVSwitch partitions of the board that the node's configuration names
    shares_per_gpu: int = SHARES_PER_GPU  # containers that may share one card, as the node's configuration says
    isolations: tuple[IsolationName, ...] = (IsolationName.NONE,)  # isolations for shares, the default first; by configuration
    problems: tuple[str, ...] = field(default=())  # texts about unreadable devices

    @property
    def vfs(self) -> tuple[Vf, ...]:
        return tuple(vf for pf in self.pfs for vf in pf.vfs)

    def driver_of(self, vendor: str) -> Driver | None:
        return next((driver for driver in self.drivers if driver.vendor == vendor), None)
