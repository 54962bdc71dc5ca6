"""Define the inventory of a node: GPUs, RDMA PFs and VFs, as values. `hooks/inventory` reads it, and `hooks/grant` uses it.

A GPU is identified by its UUID, a PF or VF by its PCI address. Index, minor, ibdev, netdev and uverbs number may change at a
reboot or a driver reload, so they are read from the inventory at the moment of use and never stored.

Tests: tests/unit/hooks/inventory/test_read.py
"""

from dataclasses import dataclass, field
from typing import Final

from hooks.model.cdi import Hook
from lading.devices.identity import MemorySpan
from lading.devices.isolation import IsolationName
from lading.nodedevices import SHARES_PER_GPU
from lading.vocabulary import GpuUuid, PciAddress

# Link layers, as sysfs spells them.
ETHERNET: Final = "Ethernet"
INFINIBAND: Final = "InfiniBand"


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """Represent a character device node, by its paths and its numbers in the kernel. Links are not followed."""

    path: str  # path in a container: /dev/infiniband/uverbs0
    host_path: str  # path for the runtime: below --host-root
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """Represent a MIG instance. If Lading divides the card, represent a position where an instance can be made
    (lading.devices.identity.position_name)."""

    uuid: str  # UUID of the instance (MIG-…), or name of the position
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
    """Represent a partition of the NVSwitches: GPUs that Fabric Manager can connect, isolated from all other GPUs."""

    id: int  # Fabric Manager's number of the partition
    modules: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Represent a process that computes on a card, also by way of an MPS server."""

    pid: int  # in the host's pid namespace
    instance: tuple[int, int] | None = None  # MIG: its GPU instance and compute instance
    # The use changes with every read and does not make processes unequal. None: the driver does not report it.
    used_mib: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    uuid: GpuUuid
    vendor: str  # name of the `Vendor` that read it, and injects it
    bdf: PciAddress  # four-digit domain, lower case: 0000:1b:00.0
    index: int  # driver's index, in PCI order; for people, never stored
    minor: int
    model: str
    memory_mib: int  # total memory, including `reserved_mib`
    reserved_mib: int  # memory that the driver itself uses
    numa: int | None  # NUMA node; None is unknown
    node: CharDevice | None  # device node; None if `unhealthy` says why there is none
    mig: tuple[MigInstance, ...] = ()
    mig_enabled: bool = False
    unhealthy: str = ""  # why the card is unhealthy, or empty
    processes: tuple[GpuProcess, ...] | None = None  # None: the driver does not list processes
    path: tuple[str, ...] = ()  # PCI bridges above the card, from the host bridge (pci0000:17) down
    socket: int | None = None
    module_id: int | None = None  # Fabric Manager's number of the card on an NVSwitch board
    links: tuple[NvLink, ...] = ()
    context_mib: int = 0  # memory that a context of a process takes; 0: not known yet (node/share_watch.py)
    limits_memory: bool = False  # whether a trial showed that the driver limits the memory of a cgroup on this card
    compute_mode: str = ""  # driver's name of the compute mode, unless any process may use the card
    drm: tuple[CharDevice, ...] = ()  # /dev/dri/card<N>, renderD<N>, if the node gives them to containers
    binding: int | None = field(default=None, compare=False)  # number of the binding to its driver (`hooks.host.binding`)
    # The use changes with every read and does not make the cards unequal. None: the driver does not report it.
    used_mib: int | None = field(default=None, compare=False)  # memory in use, without `reserved_mib`
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
        """Return why no container can use RDMA through this VF now; an empty string if containers can."""
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
    path: tuple[str, ...] = ()  # PCI bridges above the PF and its VFs, from the host bridge down
    socket: int | None = None
    unhealthy: str = ""  # why the PF's VFs reach no peer, or empty
    pcie: str = ""  # fastest PCIe link that the PF supports: "32.0 GT/s PCIe x16"; empty if sysfs does not show it
    rail: int | None = None  # number of the PF's leaf switch, the same on every node; None is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMount:
    """Represent a file or socket of the host's driver, found below the configured driver root."""

    host_path: str
    container_path: str
    is_socket: bool = False
    mounted_at: str = ""  # path at which this process can open the file, if not `host_path`


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    vendor: str
    version: str
    control: tuple[CharDevice, ...]  # existing device nodes that belong to no card, with the nodes of optional groups
    mounts: tuple[DriverMount, ...] = ()  # libraries and programs of the driver, if containers get them from Lading
    files_problem: str = ""  # why containers cannot get the driver's files; empty if they can, or get none from Lading
    missing: tuple[str, ...] = ()  # files that were removed after the driver was read; they are not in `mounts`
    group_mounts: tuple[DriverMount, ...] = ()  # files of optional groups that the configuration names
    hooks: tuple[Hook, ...] = ()  # hooks of the driver's CDI specs, if the driver's files need them


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    gpus: tuple[Gpu, ...] = ()
    pfs: tuple[Pf, ...] = ()
    drivers: tuple[Driver, ...] = ()  # driver of each vendor that has one on this node
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
