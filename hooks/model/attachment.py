"""Define a VF given to a sandbox: its wanted settings, its original state, and the progress of the attachment. Values only.

Two sides of a VF are set apart. Its *PF* keeps what a pod must not change (MAC, VLAN, rates, spoof check, trust, link state):
`VfConfig`. Its network device, while it is the host's, has a name, an address and an MTU of its own: `Netdev`.

In every value `None` means: not told, or not asked for. Nothing that is None is ever written to the kernel.

Source: linux/if_link.h (IFLA_VF_*), ip-link(8) "vf"; the order of steps is sriov-cni's, the journal around it is ours.

Tests: tests/unit/hooks/ledger/test_attachment.py
"""

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, NamedTuple

from hooks.model.inventory import Vf
from lading.vocabulary import PciAddress, PodUid, SandboxId

MAX_VLAN: Final = 4094
MAX_QOS: Final = 7
MAX_RATE: Final = 2**32 - 1  # Mbit/s, the kernel's integer
MIN_MTU: Final = 68  # RFC 791
MAX_MTU: Final = 65535
MOST_ALTNAMES: Final = 16  # kept alternative names of a device; udev gives one for each of its five policies
_ALTNAME: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,127}")  # ALTIFNAMSIZ is 128 with the NUL

STRAY: Final = "its network device is in another namespace, and Lading did not put it there"


class VlanProtocol(StrEnum):
    DOT1Q = "802.1q"
    DOT1AD = "802.1ad"


class VfLinkState(StrEnum):
    AUTO = "auto"  # follows the PF's
    ENABLE = "enable"
    DISABLE = "disable"


class MacOwner(StrEnum):
    """Name the side that decided the MAC of a VF before the attachment. A PF that was given a MAC refuses others from the VF;
    many drivers also report a MAC that the VF has by itself as if the PF had been given it."""

    UNKNOWN = "unknown"  # recorded before this was, or not asked: the PF gets what it reported
    UNTOUCHED = "untouched"  # nothing was given to the PF yet
    PF = "pf"
    VF = "vf"  # the VF could change its MAC, and must be able to again


class RdmaMode(StrEnum):
    """Name the kernel's mode for ibdevs and network namespaces (`rdma system`); NONE: no RDMA in this kernel."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfConfig:
    """Hold the settings that a PF keeps for one of its VFs."""

    mac: str | None = None  # six octets, lower case: 02:00:5e:10:00:01
    vlan: int | None = None  # 0 to 4094; 0 is none
    vlan_qos: int | None = None  # 0 to 7
    vlan_proto: VlanProtocol | None = None
    min_tx_rate: int | None = None  # Mbit/s; 0 is none
    max_tx_rate: int | None = None  # Mbit/s; 0 is none
    spoofchk: bool | None = None
    trust: bool | None = None
    link_state: VfLinkState | None = None

    @property
    def empty(self) -> bool:
        return all(getattr(self, f.name) is None for f in fields(self))


class Route(NamedTuple):
    to: str  # a network: 10.1.0.0/16, or 0.0.0.0/0
    via: str = ""  # a gateway; empty: on the link


@dataclass(frozen=True, slots=True, kw_only=True)
class VfSettings:
    """Hold the wanted settings of one VF in a pod: an assignment's for its own VF, the node's configuration for all."""

    config: VfConfig = field(default_factory=VfConfig)
    mtu: int | None = None
    addresses: tuple[str, ...] = ()  # with their prefix: 10.0.0.2/24
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevPolicy:
    """Hold the rules from the node's configuration."""

    attaches: bool = False  # Lading moves devices into pods; False: nothing does, or a CNI plugin
    by_cni: bool = False  # a CNI plugin does
    by_default: bool = False  # the network device of a VF whose assignment does not say
    settings: VfSettings = field(default_factory=VfSettings)  # where its assignment does not say

    @property
    def expected(self) -> bool:
        """Return whether Lading moves network devices into pods by default. A device that is missing on the host was then moved
        by Lading, or by an unknown process."""
        return self.attaches and self.by_default


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Represent a network device as RTM_GETLINK shows it."""

    index: int
    name: str
    mac: str  # empty: it has none
    mtu: int
    up: bool
    parent: str = ""  # IFLA_PARENT_DEV_NAME: the PCI address of a function's device; empty where the kernel does not tell
    altnames: tuple[str, ...] = ()  # any octets; each takes a name of the namespace as a device's own does
    lower: int = 0  # index of the device of this namespace that it stands on (VLAN, macvlan); 0: on none


class KeptSetting(NamedTuple):
    """Represent a setting that a network device keeps when it changes its network namespace: `("group", "0")`."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Netdev:
    """Hold the state of a VF's network device before anything was changed."""

    name: str
    mac: str
    mtu: int
    up: bool
    parent: str = ""  # name of the parent device, as in `Link`
    altnames: tuple[str, ...] = ()  # those that a host gives: udev's
    kept: tuple[KeptSetting, ...] = ()  # all that a pod can change beside; empty: recorded before Lading restored it


def is_altname(text: str) -> bool:
    """Return whether a host gives such a name. The kernel takes any octets, which a journal could not store."""
    return _ALTNAME.fullmatch(text) is not None


class RdmaDevice(NamedTuple):
    """Represent an ibdev. Its number is its own from one load of its driver to the next, in whatever namespace and by whatever
    name."""

    number: int
    name: str


class NetnsId(NamedTuple):
    """Hold the identity of a namespace while it exists (stat(2) of an nsfs file). Numbers are used again after it is gone."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedVf:
    """Represent one VF of a container's grant, for the sandbox of its pod."""

    vf: Vf
    ifname: str = ""  # in the pod; empty: the lowest rdma<N> that is free there
    settings: VfSettings = field(default_factory=VfSettings)
    netdev: bool = True  # False: in exclusive mode its RDMA device alone goes; in shared mode nothing has to


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOf:
    """Identify a sandbox, and the pod that it belongs to."""

    pod: PodUid
    namespace: str
    pod_name: str
    sandbox: SandboxId


class Step(StrEnum):
    """Name the steps of an attachment. Each step is in the journal *before* it begins, so that possible changes are known
    whenever the process dies. In this order; a release begins from any of the first seven."""

    RECORDED = "recorded"  # the original is known; nothing is changed yet
    ADDRESSING = "addressing"  # the device takes its MAC by itself, which shows whether its PF lets it
    CONFIGURING = "configuring"  # the PF's side, and the device's MAC and MTU while it is the host's
    MOVING = "moving"  # into the pod's namespace, renamed at once
    RDMA_MOVING = "rdma-moving"  # exclusive mode: the ibdev follows
    RAISING = "raising"  # up, addresses, routes
    ATTACHED = "attached"
    RDMA_RETURNING = "rdma-returning"  # the ibdev goes first
    RETURNING = "returning"  # out of the pod's namespace
    RESTORING = "restoring"  # name, MAC, MTU, and what was changed at the PF; then the attachment is forgotten

    @property
    def releasing(self) -> bool:
        return self in {Step.RDMA_RETURNING, Step.RETURNING, Step.RESTORING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Represent one VF in one sandbox, from before the first change to after the last. The journal has at most one of each
    VF."""

    vf: Vf  # VF as the inventory showed it before the move; sysfs may not show an attached VF
    generation: int  # counts all attachments of this node: it identifies a late release of an older one
    pod: PodUid
    namespace: str
    pod_name: str
    sandbox: SandboxId
    netns: str  # path
    netns_id: NetnsId
    boot_id: str
    ifname: str  # in the pod
    settings: VfSettings
    netdev: Netdev | None  # the original; None: the VF has no network device (InfiniBand without IPoIB)
    config: VfConfig  # the original at the PF; None where the driver does not tell
    rdma: bool  # exclusive mode: its ibdev is moved too
    step: Step
    since: int  # Unix time, seconds
    failure: str = ""  # error text of the last attempt at the step
    mac_owner: MacOwner = MacOwner.UNKNOWN
    ibdev_number: int | None = None  # number of the moved ibdev, which a pod may rename; None in older rows

    @property
    def bdf(self) -> PciAddress:
        return self.vf.bdf
