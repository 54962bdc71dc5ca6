"""The kernel calls that an attachment needs. `netlink` is the real implementation; tests have a model, and devices that replace
VFs.

Every method may block (a driver sets a VF's MAC by a mailbox to its firmware), so each is called in a thread of its own, never
on the loop. Each may be called again after it succeeded or failed halfway, and then changes nothing that is already as
requested: a daemon that was killed does not know whether the last call was carried out.

Functions are named by PCI address and looked up at the moment of use; network namespaces by path. `None` is the host's
namespace, in which this process runs.
"""

from typing import NamedTuple, Protocol

from hooks.model.attachment import KeptSetting, Link, NetnsId, RdmaDevice, RdmaMode, Route, VfConfig
from lading.errors import HostError
from lading.vocabulary import PciAddress


class KernelError(HostError):
    """The kernel or a driver refused, or the device does not exist. The message names the request and the device."""

    def __init__(self, message: str) -> None:
        """Set the message. It may contain names of devices whose octets are not text: a pod chose them, and the message goes
        into the journal."""
        super().__init__(message.encode(errors="backslashreplace").decode())


class NetnsGoneError(KernelError):
    """No namespace is at this path (any more), or another one than was meant."""


class NameTakenError(KernelError):
    """Another device has that name."""


class StateVersion(NamedTuple):
    """A VF's driver and the devices that the host sees of it. While these are equal, no device came back from a pod."""

    binding: int | None  # another one after each bind of a driver
    netdevs: tuple[str, ...]
    ibdevs: tuple[str, ...]


class Kernel(Protocol):
    def state_version(self, vf: PciAddress) -> StateVersion:
        """Return the version of the VF's state, from sysfs alone. It asks no driver and waits for no lock: unlike all others,
        it may be called on the loop."""

    # ---- namespaces

    def netns_id(self, netns: str) -> NetnsId | None:
        """Return the id of the namespace; None if there is none (any more)."""

    # ---- at the PF

    def read_vf(self, pf: PciAddress, index: int) -> VfConfig:
        """Return all that the driver reports. Raise KernelError if the PF has no network device, or no such VF."""

    def set_vf(self, pf: PciAddress, index: int, config: VfConfig) -> None:
        """Set what is not None, in this order: VLAN, MAC (read back, and set again if the driver lost it), rates, spoof check,
        trust, link state. The MAC is set even if the PF reports it already: it may be the VF's own, which the VF can change."""

    def release_mac(self, pf: PciAddress, index: int, *, unless: str) -> None:
        """Let a VF decide its MAC: take away the one that its PF was given. Do nothing if the PF reports the MAC `unless`."""

    def confirm_mac(self, pf: PciAddress, index: int, mac: str) -> None:
        """Set this MAC of a VF unless the PF reports it."""

    # ---- the VF's network device

    def host_link(self, vf: PciAddress) -> Link | None:
        """Return the VF's network device in the host's namespace, by whatever name; None if it is not there. Raise KernelError
        if there are several, one for each port: nothing says which one is meant."""

    def link(self, netns: str | None, name: str) -> Link | None:
        """Find a device by name. Raise NetnsGoneError."""

    def names(self, netns: str) -> frozenset[str]:
        """Return all names in use there, alternative names too. Raise NetnsGoneError."""

    def set_link(
        self, netns: str | None, name: str, *, mac: str | None = None, mtu: int | None = None, up: bool | None = None
    ) -> None:
        """Set the device down before the rest, up after it. A MAC is set only while the device is down. If the driver refuses
        it, the device goes up and down, so that it takes the MAC that its PF has for it."""

    def take_mac(self, name: str, mac: str) -> bool:
        """Let a device of the host's namespace set its MAC by itself. Return whether its PF allowed it; a device that has that
        MAC already counts as allowed. The device is down afterwards."""

    def rename(self, name: str, to: str) -> None:
        """Rename a device in the host's namespace, and leave it down: kernels before 6.2 rename no device that is up. Raise
        KernelError if `to` is another device's own name; an alternative name is taken from the device that has it, because a
        pod can give one to its device before it comes back."""

    def set_altnames(self, name: str, altnames: tuple[str, ...]) -> None:
        """Give a device in the host's namespace these alternative names and no others. A name that is not available (any more)
        is left out."""

    def move_in(self, name: str, netns: str, netns_id: NetnsId, to: str) -> None:
        """Set a device down, then move it into the namespace and rename it in one request, which fails as a whole if a device
        there has that name. Its alternative names are removed: each is one more that may be in use there. Raise NetnsGoneError
        also if another namespace is at that path now."""

    def move_out(self, netns: str, netns_id: NetnsId, name: str, to: str) -> None:
        """Move a device back to the host's namespace; `to` is a name that is free there. Remove what the pod made on top of it,
        and alternative names that the pod gave it: one that is in use here would keep the device there."""

    def configure(self, netns: str, name: str, *, addresses: tuple[str, ...], routes: tuple[Route, ...]) -> None:
        """Set a device up, then add its addresses, then its routes. What exists already stays."""

    def read_kept(self, vf: PciAddress, name: str) -> tuple[KeptSetting, ...]:
        """Return the settings that the VF's device in the host's namespace keeps when it changes its namespace, without name,
        MAC, MTU and alternative names. What the kernel or the driver does not report is left out."""

    def restore_kept(self, vf: PciAddress, name: str, settings: tuple[KeptSetting, ...]) -> None:
        """Give the VF's device in the host's namespace these settings, and detach programs that it did not have. Raise
        KernelError with each setting that differs afterwards."""

    # ---- its RDMA device

    def rdma_mode(self) -> RdmaMode:
        """Return the mode of the whole machine."""

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        """Return the VF's RDMA device in the host's namespace: the one with this number, or, if there is none (any more), the
        one of this function, by whatever name. Raise KernelError if the VF has several."""

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        """Move an RDMA device, by its number. The name of an ibdev is unique across all namespaces."""

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None: ...

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        """Return the devices that a process in this namespace sees. Raise NetnsGoneError."""

    def rdma_rename(self, ibdev: RdmaDevice, to: str) -> None:
        """Rename a device in the host's namespace, by its number. Raise NameTakenError if another device in any namespace has
        that name."""
