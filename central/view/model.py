"""The values for people and for the page: one `NodeView` a node, as JSON with these names.

*Held* is what the ledger has given away, *used* is what the node's driver saw in use when it last looked. A card that is held
may idle: the two are never added, nor shown under one name. Amounts are MiB of memory and percent of one card's compute.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Counts(NamedTuple):
    """Devices of one kind, counted as every table, the page and `why` count them. Each device is in one of the three."""

    free: int  # nothing of them is held, and all of them may be given
    held: int  # in whole or in part
    unusable: int  # unhealthy, dirty, cordoned, used without a grant, or withheld; held or not

    @property
    def total(self) -> int:
        return self.free + self.held + self.unusable


class State(StrEnum):
    """The state of one device."""

    FREE = "free"  # no pod has anything of it, and it may be given
    SHARED = "shared"  # a GPU of which parts are held, and the rest may be given
    HELD = "held"  # nothing of it is left to give
    WITHHELD = "withheld"  # not held, or only in part, and its node gives nothing now: the node's state says why
    UNUSABLE = "unusable"  # unhealthy, dirty, cordoned, or used without a grant; it may be held all the same


class NodeState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"  # its Node is not Ready: what is held there stays held
    REBOOTED = "rebooted"  # since its report
    UNSCHEDULABLE = "unschedulable"  # kubectl cordon
    NOT_RECONCILED = "not-reconciled"  # it does not know yet which pods hold its devices
    NO_REPORT = "no-report"  # there is no NodeDevices object


class _View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of all parts. Parts form no cycles, so the garbage collector need not visit them."""


class Holder(_View, frozen=True):
    """A pod that holds a device, and how much of it. A VF has no amounts."""

    uid: str  # the pod's
    namespace: str = ""
    pod: str = ""  # its name; empty if not known
    created: int = 0  # the pod, Unix seconds; 0: unknown
    claims: tuple[str, ...] = ()  # central.ledger.model.Claim: why the ledger believes so
    containers: tuple[str, ...] = ()  # where the node reports them
    memory_mib: int = 0
    core_percent: int = 0
    whole: bool = False
    mig: tuple[str, ...] = ()  # UUIDs of instances
    isolation: str = ""  # of its share; empty: none
    used_mib: int | None = None  # memory of the device that its processes use; absent where the node does not tell it by pod


class Past(_View, frozen=True):
    """A pod that held a device before. Times are in Unix seconds."""

    device: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    since: int = 0
    until: int = 0
    by: str = ""  # whose decision: signed, unsigned or manual


class Use(_View, frozen=True):
    """The use that the driver measured. What a card does not report is absent."""

    memory_mib: int | None = None
    busy_percent: int | None = None  # of the driver's last sample period
    at: int = 0  # Unix seconds


class MigView(_View, frozen=True):
    uuid: str
    profile: str = ""
    memory_mib: int = 0
    state: State = State.FREE
    holders: tuple[Holder, ...] = ()


class GpuView(_View, frozen=True):
    uuid: str
    bdf: str
    index: int  # in order of PCI address, from 0
    model: str
    memory_mib: int  # that can be given: without the driver's own part
    state: State
    held_mib: int = 0
    held_percent: int = 0
    why: str = ""  # of an unusable one, in words
    cordoned: bool = False
    holders: tuple[Holder, ...] = ()
    mig: tuple[MigView, ...] = ()
    mig_positions: tuple[str, ...] = ()  # instances of which the node could make some or others on demand: "7 x 1g.10gb"
    module_id: int | None = None
    nvlinks: int = 0
    use: Use | None = None
    idle: bool = False  # held, and the driver saw nothing in use; false too where the node does not report use


class VfView(_View, frozen=True):
    bdf: str
    state: State
    why: str = ""
    holders: tuple[Holder, ...] = ()


class PfView(_View, frozen=True):
    bdf: str
    ibdev: str = ""
    netdev: str = ""
    link_layer: str = ""
    rail: int | None = None  # absent where it is not known
    why: str = ""  # unhealthy or cordoned, in words
    cordoned: bool = False
    vfs: tuple[VfView, ...] = ()


class Group(_View, frozen=True):
    """Devices below one switch: one root port's tree, or, where a device is below none, its host bridge."""

    name: str  # the bridge's PCI address
    socket: int | None = None
    numa: int | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    pfs: tuple[str, ...] = ()  # PCI addresses


class NodeView(_View, frozen=True):
    name: str
    state: NodeState
    gpus: tuple[GpuView, ...] = ()
    pfs: tuple[PfView, ...] = ()
    groups: tuple[Group, ...] = ()  # by socket, NUMA node and address; every GPU and PF is in one
    problems: tuple[str, ...] = ()
    reporter: str = ""  # version of lading-hooks
    driver: str = ""
    cordon: str = ""  # as a person wrote it
    isolations: tuple[str, ...] = ()  # of shares, that it offers, its default first; nothing: none alone
    past: tuple[Past, ...] = ()  # newest first


class PendingView(_View, frozen=True):
    uid: str
    namespace: str
    pod: str
    asks: str  # in words
    created: int = 0  # Unix seconds; 0: unknown
    refused_s: float | None = None  # for how long; None: not refused since it was last seen to fit, or not known
    reasons: dict[str, int] = {}  # nodes by reason code
    making_room_on: str = ""
    keeping_room_on: str = ""
    quota: str = ""  # why its quota refuses it
    gang: str = ""  # how far its gang is, with its place in line, in words
    line: str = ""  # its own place in line, in words


class Totals(_View, frozen=True):
    """The totals of a node or of a cluster. A device is in one of `free`, `shared`, `held`, `withheld` and `unusable`."""

    gpus: int = 0
    gpus_free: int = 0
    gpus_shared: int = 0
    gpus_held: int = 0
    gpus_withheld: int = 0
    gpus_unusable: int = 0
    gpus_idle: int = 0  # of those that are held, in whatever state
    memory_mib: int = 0  # of all GPUs
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
    def gpu_counts(self) -> Counts:
        return Counts(self.gpus_free, self.gpus_shared + self.gpus_held, self.gpus_withheld + self.gpus_unusable)

    @property
    def vf_counts(self) -> Counts:
        return Counts(self.vfs_free, self.vfs_held, self.vfs_withheld + self.vfs_unusable)
