"""Define the values for the page and for `kubectl lading`: one `NodeView` a node, as JSON with these field names.

*Held* amounts are given away in the ledger; *used* amounts were measured by the node's driver. A held card may idle, so the two
are never added, nor shown under one name. Amounts are MiB of memory and percent of one card's compute.

Tests: tests/unit/central/view/test_pods.py
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class DeviceCounts(NamedTuple):
    """Count devices of one kind, in the same way for every table, the page and `why`. Each device is in one of the three."""

    free: int  # usable devices of which no part is held
    held: int  # devices held in whole or in part
    unusable: int  # unhealthy, dirty, cordoned, used without a grant, or withheld; held or not

    @property
    def total(self) -> int:
        return self.free + self.held + self.unusable


class DeviceState(StrEnum):
    FREE = "free"  # no pod holds any part of the device, and it may be given
    SHARED = "shared"  # parts of a GPU are held, and the rest may be given
    HELD = "held"  # no part is left to give
    WITHHELD = "withheld"  # not held, or only in part, but its node gives no devices now: see the node's state
    UNUSABLE = "unusable"  # unhealthy, dirty, cordoned, or used without a grant; it may be held all the same


class NodeState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"  # the Node is not Ready; its held devices stay held
    REBOOTED = "rebooted"  # the node has rebooted since its last report
    UNSCHEDULABLE = "unschedulable"  # kubectl cordon
    NOT_RECONCILED = "not-reconciled"  # the node's ledger is not complete yet
    NO_REPORT = "no-report"  # there is no NodeDevices object


class _View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Define the base of all views. Views form no cycles, so the garbage collector need not visit them."""


class HolderView(_View, frozen=True):
    """Represent a pod that holds a device, with its amounts. A VF has no amounts."""

    uid: str  # uid of the pod
    namespace: str = ""
    pod: str = ""  # name of the pod; empty if unknown
    created: int = 0  # creation of the pod, Unix seconds; 0: unknown
    claims: tuple[str, ...] = ()  # the ledger's claims (central.ledger.model.Claim)
    containers: tuple[str, ...] = ()  # containers with the device, if the node reports them
    memory_mib: int = 0
    core_percent: int = 0
    whole: bool = False
    mig: tuple[str, ...] = ()  # UUIDs of MIG instances
    isolation: str = ""  # isolation of the share; empty: none
    used_mib: int | None = None  # device memory used by the pod's processes; absent if the node does not report it by pod


class Past(_View, frozen=True):
    """Represent a former holder of a device. Times are in Unix seconds."""

    device: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    since: int = 0
    until: int = 0
    by: str = ""  # origin of the assignment: signed, unsigned or manual


class Use(_View, frozen=True):
    """Hold the driver's measurement of a card's use. Values that the card does not report are absent."""

    memory_mib: int | None = None
    busy_percent: int | None = None  # busy part of the driver's last sample period
    at: int = 0  # Unix seconds


class MigView(_View, frozen=True):
    uuid: str
    profile: str = ""
    memory_mib: int = 0
    state: DeviceState = DeviceState.FREE
    holders: tuple[HolderView, ...] = ()


class GpuView(_View, frozen=True):
    uuid: str
    bdf: str
    index: int  # position by PCI address, from 0
    model: str
    memory_mib: int  # memory that can be given: without the driver's own part
    state: DeviceState
    held_mib: int = 0
    held_percent: int = 0
    why: str = ""  # reason why the card is unusable
    cordoned: bool = False
    holders: tuple[HolderView, ...] = ()
    mig: tuple[MigView, ...] = ()
    mig_positions: tuple[str, ...] = ()  # alternative instances that the node could create on demand, such as "7 x 1g.10gb"
    module_id: int | None = None
    nvlinks: int = 0
    use: Use | None = None
    idle: bool = False  # held, but the driver reports no use; false if the node does not report use


class VfView(_View, frozen=True):
    bdf: str
    state: DeviceState
    why: str = ""
    holders: tuple[HolderView, ...] = ()


class PfView(_View, frozen=True):
    bdf: str
    ibdev: str = ""
    netdev: str = ""
    link_layer: str = ""
    rail: int | None = None  # absent if unknown
    why: str = ""  # reason why the PF is unhealthy or cordoned
    cordoned: bool = False
    vfs: tuple[VfView, ...] = ()


class GroupView(_View, frozen=True):
    """Hold the devices below one PCIe root port; devices below no root port are grouped by their host bridge."""

    name: str  # PCI address of the bridge
    socket: int | None = None
    numa: int | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    pfs: tuple[str, ...] = ()  # PCI addresses


class NodeView(_View, frozen=True):
    name: str
    state: NodeState
    gpus: tuple[GpuView, ...] = ()
    pfs: tuple[PfView, ...] = ()
    groups: tuple[GroupView, ...] = ()  # sorted by socket, NUMA node and address; every GPU and PF is in one group
    problems: tuple[str, ...] = ()
    reporter: str = ""  # version of lading-hooks
    driver: str = ""
    cordon: str = ""  # the node's cordon annotation, unchanged
    isolations: tuple[str, ...] = ()  # isolations that the node offers for shares, its default first; empty: only `none`
    past: tuple[Past, ...] = ()  # newest first


class PendingView(_View, frozen=True):
    uid: str
    namespace: str
    pod: str
    asks: str  # the request as text
    created: int = 0  # Unix seconds; 0: unknown
    refused_s: float | None = None  # seconds since the refusal; None: not refused since the pod last fitted, or unknown
    reasons: dict[str, int] = {}  # number of nodes by reason code
    making_room_on: str = ""  # node where victims are evicted for the pod
    keeping_room_on: str = ""  # node with a reservation for the pod
    quota: str = ""  # reason why its quota refuses the pod
    gang: str = ""  # phase and queue position of its gang, as text
    line: str = ""  # queue position of the pod, as text


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a pod that would free devices if it ended."""

    uid: str
    namespace: str = ""
    pod: str = ""  # empty if unknown: only its node still holds devices for the pod
    priority: int = 0
    deleting: bool = False  # the pod is ending already


class Totals(_View, frozen=True):
    """Hold the totals of a node or a cluster. A device is in one of `free`, `shared`, `held`, `withheld` and `unusable`."""

    gpus: int = 0
    gpus_free: int = 0
    gpus_shared: int = 0
    gpus_held: int = 0
    gpus_withheld: int = 0
    gpus_unusable: int = 0
    gpus_idle: int = 0  # held GPUs without use, in any state
    memory_mib: int = 0  # memory of all GPUs
    held_mib: int = 0
    core_percent: int = 0  # 100 a GPU
    held_percent: int = 0
    vfs: int = 0
    vfs_free: int = 0
    vfs_held: int = 0
    vfs_withheld: int = 0
    vfs_unusable: int = 0
    nodes: int = 1
    nodes_not_ready: int = 0

    @property
    def gpu_counts(self) -> DeviceCounts:
        return DeviceCounts(self.gpus_free, self.gpus_shared + self.gpus_held, self.gpus_withheld + self.gpus_unusable)

    @property
    def vf_counts(self) -> DeviceCounts:
        return DeviceCounts(self.vfs_free, self.vfs_held, self.vfs_withheld + self.vfs_unusable)
