"""Define a VF given to a sandbox: its wanted settings, its original state, and the progress of the attachment. Values only.

A VF has settings in two places. The *PF* keeps the settings that a pod must not change (MAC, VLAN, rates, spoof check, trust,
link state): `VfConfig`. The VF's network device has a name, a MAC and an MTU: `Netdev` records these before the first change.

In every value `None` means that the kernel does not report the setting, or that no one requested a change. `None` is never
written to the kernel.

Source: linux/if_link.h (IFLA_VF_*), ip-link(8) "vf"; sriov-cni does the steps in the same order, without a journal.

Tests: tests/unit/hooks/ledger/test_attachment.py
"""

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from hooks.model.inventory import Vf
from lading.vocabulary import PciAddress, PodUid, SandboxId

NO_MAC: Final = "00:00:00:00:00:00"  # at a PF: the PF gives its VF no MAC
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
    AUTO = "auto"  # the VF's link follows the PF's link
    ENABLE = "enable"
    DISABLE = "disable"


class MacOwner(StrEnum):
    """Name the side that decided the MAC of a VF before the attachment: the VF's PF or the VF. A PF with a configured MAC
    refuses another MAC from the VF. Many drivers report a MAC that the VF chose as if the PF had been configured with it."""

    UNKNOWN = "unknown"  # not recorded, as in rows of older versions: the PF gets the reported MAC back
    UNTOUCHED = "untouched"  # the PF was not configured with a MAC yet
    PF = "pf"
    VF = "vf"  # the VF could change its MAC, and must be able to do so again after the attachment


class RdmaMode(StrEnum):
    """List the modes in which a kernel shares RDMA devices between network namespaces, as `rdma system` shows them. NONE: the
    kernel has no RDMA."""

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
    def values(self) -> dict[str, Any]:
        """Return the settings that are not None, by field."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


# A driver may accept a setting and not report it: its reset uses the value here.
NEUTRAL: Final = VfConfig(
    mac=NO_MAC,
    vlan=0,
    vlan_qos=0,
    vlan_proto=VlanProtocol.DOT1Q,
    min_tx_rate=0,
    max_tx_rate=0,
    spoofchk=True,
    trust=False,
    link_state=VfLinkState.AUTO,
)


class Route(NamedTuple):
    to: str  # a network: 10.1.0.0/16, or 0.0.0.0/0
    via: str = ""  # a gateway; empty: on the link


@dataclass(frozen=True, slots=True, kw_only=True)
class VfSettings:
    """Hold the wanted settings of one VF in a pod. An assignment sets them for its VF, the node's configuration for all VFs."""

    config: VfConfig = field(default_factory=VfConfig)
    mtu: int | None = None
    addresses: tuple[str, ...] = ()  # with their prefix: 10.0.0.2/24
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevPolicy:
    """Hold the node's configuration of how network devices of VFs get into pods."""

    attaches: bool = False  # Lading moves devices into pods; False: a CNI plugin moves them, or no program
    by_cni: bool = False  # a CNI plugin moves devices into pods
    by_default: bool = False  # whether a VF's network device is moved if the assignment has no `netdev`
    settings: VfSettings = field(default_factory=VfSettings)  # settings for VFs whose assignment has none

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
    mac: str  # empty: the device has no MAC
    mtu: int
    up: bool
    parent: str = ""  # IFLA_PARENT_DEV_NAME: the PCI address of the function; empty if the kernel does not report it
    altnames: tuple[str, ...] = ()  # alternative names, of any octets; no other device of the namespace can have such a name
    lower: int = 0  # for a VLAN or macvlan: index of the device below it in this namespace; 0: no such device


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
    altnames: tuple[str, ...] = ()  # alternative names that the host gave, by udev
    kept: tuple[KeptSetting, ...] = ()  # other settings that a pod can change; empty in rows of older versions


def is_altname(text: str) -> bool:
    """Return whether a host would give a device this alternative name. The kernel accepts any octets, and the journal could not
    store some of them."""
    return _ALTNAME.fullmatch(text) is not None


class RdmaDevice(NamedTuple):
    """Represent an RDMA device (ibdev). The number identifies the device until its driver is loaded again, even if its name or
    network namespace changes."""

    number: int
    name: str


class NetnsId(NamedTuple):
    """Identify a network namespace while it exists, by stat(2) of its nsfs file. The kernel gives the numbers of a deleted
    namespace to a new one."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedVf:
    """Represent one VF of a container's grant, for the sandbox of its pod."""

    vf: Vf
    ifname: str = ""  # name of the network device in the pod; empty: the lowest rdma<N> that is free there
    settings: VfSettings = field(default_factory=VfSettings)
    netdev: bool = True  # False: only the RDMA device is moved, in exclusive mode; in shared mode no device is moved


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOf:
    """Identify a sandbox, and the pod that it belongs to."""

    pod: PodUid
    namespace: str
    pod_name: str
    sandbox: SandboxId


class Step(StrEnum):
    """List the steps of an attachment in their order. Each step is written into the journal *before* it begins, so that after a
    crash the journal names every change that may have been made. A release can begin from any of the first seven steps."""

    RECORDED = "recorded"  # the original state is recorded; nothing is changed yet
    ADDRESSING = "addressing"  # the MAC is set on the device itself, which shows whether the PF allows that
    CONFIGURING = "configuring"  # the PF's settings of the VF, and the device's MAC and MTU while it is on the host
    MOVING = "moving"  # move the network device into the pod's namespace, and rename it in the same call
    RDMA_MOVING = "rdma-moving"  # exclusive mode: move the ibdev too
    RAISING = "raising"  # set the device up, with addresses and routes
    ATTACHED = "attached"
    RDMA_RETURNING = "rdma-returning"  # move the ibdev back before the network device
    RETURNING = "returning"  # move the network device out of the pod's namespace
    RESTORING = "restoring"  # restore name, MAC, MTU and the PF's settings; then the journal's row is deleted

    @property
    def releasing(self) -> bool:
        return self in {Step.RDMA_RETURNING, Step.RETURNING, Step.RESTORING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Represent one VF in one sandbox, from before the first change until after the last change. The journal has at most one
    attachment for each VF."""

    vf: Vf  # VF as the inventory showed it before the move; sysfs may not show an attached VF
    generation: int  # number of this attachment among all of the node: it identifies a late release of an older attachment
    pod: PodUid
    namespace: str
    pod_name: str
    sandbox: SandboxId
    netns: str  # path of the sandbox's network namespace
    netns_id: NetnsId
    boot_id: str
    ifname: str  # name of the network device in the pod
    settings: VfSettings
    netdev: Netdev | None  # original state; None: the VF has no network device (InfiniBand without IPoIB)
    config: VfConfig  # original settings at the PF; a field is None if the driver does not report it
    rdma: bool  # whether the VF's ibdev is moved too, because of exclusive mode
    step: Step
    since: int  # Unix time, seconds
    failure: str = ""  # error text of the last attempt at the step
    mac_owner: MacOwner = MacOwner.UNKNOWN
    ibdev_number: int | None = None  # number of the moved ibdev, which a pod may rename; None in older rows

    @property
    def bdf(self) -> PciAddress:
        return self.vf.bdf
