"""What an attachment asks of the kernel. `netlink` is the real one; tests have a model, and devices that stand in for VFs.

Every method may block (a driver sets a VF's MAC by a mailbox to its firmware), so each is called in a thread of its own, never
on the loop. Every one may be called again after it succeeded or failed half-way, and then changes nothing that is as asked:
a daemon that was killed does not know whether the last call was carried out.

Functions are named by PCI address and looked up at the moment of use; network namespaces by path, `None` is the host's, the one
that this process runs in.
"""

from typing import Protocol

from hooks.model.attachment import Link, NetnsId, RdmaDevice, RdmaMode, Route, VfConfig
from lading.errors import HostError
from lading.vocabulary import PciAddress


class KernelError(HostError):
    """The kernel or a driver refused, or what was asked about is not there. Says what was asked, of which device."""

    def __init__(self, message: str) -> None:
        """Names of devices may be in it whose octets are no text: a pod chose them, and the message is journaled."""
        super().__init__(message.encode(errors="backslashreplace").decode())


class NetnsGoneError(KernelError):
    """No namespace at this path (any more), or another one than was meant."""


class NameTakenError(KernelError):
    """Another device has that name."""


class Kernel(Protocol):
    # ---- namespaces

    def netns_id(self, netns: str) -> NetnsId | None:
        """None: there is no namespace (any more)."""

    # ---- the PF's side

    def read_vf(self, pf: PciAddress, index: int) -> VfConfig:
        """All that the driver tells. KernelError where the PF has no network device, or no such VF."""

    def set_vf(self, pf: PciAddress, index: int, config: VfConfig) -> None:
        """What is not None, in this order: VLAN, MAC (read back, and set again where the driver lost it), rates, spoof check,
        trust, link state."""

    # ---- the VF's network device

    def host_link(self, vf: PciAddress) -> Link | None:
        """The VF's network device in the host's namespace, by whatever name; None: it is not there. KernelError where there
        are several, one for each port: which of them would be meant is nowhere said."""

    def link(self, netns: str | None, name: str) -> Link | None:
        """By name. NetnsGoneError."""

    def names(self, netns: str) -> frozenset[str]:
        """All that are taken there, alternative names too. NetnsGoneError."""

    def set_link(
        self, netns: str | None, name: str, *, mac: str | None = None, mtu: int | None = None, up: bool | None = None
    ) -> None:
        """Down before the rest, up after it. A MAC is set only while the device is down."""

    def rename(self, name: str, to: str) -> None:
        """In the host's namespace. Leaves it down: kernels before 6.2 rename no device that is up. KernelError where `to` is
        another device; an alternative name is taken from whoever has it: a pod can give one to what comes back from it."""

    def set_altnames(self, name: str, altnames: tuple[str, ...]) -> None:
        """In the host's namespace: it has these and no others. One that is not to be had (any more) stays away."""

    def move_in(self, name: str, netns: str, netns_id: NetnsId, to: str) -> None:
        """Down, then into the namespace and renamed in one request: it fails as a whole where a device there has that name.
        Without its alternative names: each is one more that may be taken there. NetnsGoneError also where another namespace is
        at that path now."""

    def move_out(self, netns: str, netns_id: NetnsId, name: str, to: str) -> None:
        """The way back, to the host's namespace; `to` is a name that is free there. What the pod made on top of it goes, and
        alternative names that the pod gave it: one that is taken here would keep it there."""

    def configure(self, netns: str, name: str, *, addresses: tuple[str, ...], routes: tuple[Route, ...]) -> None:
        """Up, then addresses, then routes. What is there already stays."""

    # ---- its RDMA device

    def rdma_mode(self) -> RdmaMode:
        """Of the whole machine."""

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        """The VF's RDMA device in the host's namespace: of this number, or, where there is none (any more), of this function
        and by whatever name. KernelError where it has several."""

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        """By its number. Its name, as that of every ibdev, is no other's in any namespace."""

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None: ...

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        """Those that a process in this namespace sees. NetnsGoneError."""

    def rdma_rename(self, ibdev: RdmaDevice, to: str) -> None:
        """In the host's namespace, by its number. NameTakenError where another one has that name, wherever it is."""
