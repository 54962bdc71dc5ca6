"""Define the kernel calls that an attachment needs. `netlink` makes them on a real host; tests have a model of the kernel, and
devices that replace VFs.

Every method may block (a driver sets a VF's MAC by a mailbox to its firmware). So call each method in a thread of its own,
never on the event loop. Each method may be called again after a success or a failure halfway, and then changes only what
differs from the request. The reason: a killed daemon does not know whether its last call was carried out.

PCI functions are named by address, and looked up in each call. Network namespaces are named by path. `None` is the host's
namespace, in which this process runs.

Tests: tests/node/test_netlink.py
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from hooks.attach.messages import Exchange, NetlinkMessage, RefusedError, errno_name, parse_answer
from hooks.model.attachment import KeptSetting, Link, NetnsId, RdmaDevice, RdmaMode, Route, VfConfig
from lading.errors import HostError
from lading.vocabulary import PciAddress


class KernelError(HostError):
    """Report that the kernel or a driver refused, or that the device does not exist. The message names the request and the
    device."""

    def __init__(self, message: str) -> None:
        """Set the message, and escape octets of device names that are not text. A pod may choose such a name, and the message
        goes into the journal."""
        super().__init__(message.encode(errors="backslashreplace").decode())


class NetnsMissingError(KernelError):
    """Report that the path has no namespace (any more), or another one than the expected one."""


class NameTakenError(KernelError):
    """Report that another device has the requested name."""


@contextlib.contextmanager
def attempting(doing: str) -> Iterator[None]:
    """Turn errors into a KernelError, which keeps the original error as its cause. `doing` completes the message "cannot …"."""
    try:
        yield
    except (RefusedError, ValueError) as e:  # ValueError: an answer that is cut off
        raise KernelError(f"cannot {doing}: {e}") from e
    except OSError as e:
        raise KernelError(f"cannot {doing}: {errno_name(e.errno or 0)}: {e.strerror}") from e


def ask(exchange: Exchange, request: bytes, doing: str) -> list[NetlinkMessage]:
    with attempting(doing):
        return parse_answer(exchange(request))


def refused(error: KernelError, *codes: int) -> bool:
    """Return whether the kernel answered with one of these error numbers."""
    return isinstance(error.__cause__, RefusedError) and error.__cause__.code in codes


class StateVersion(NamedTuple):
    """Identify a VF's state: its driver's binding, and the VF's devices that the host sees. While the version is unchanged, no
    device came back from a pod."""

    binding: int | None  # number that changes with each bind of a driver
    netdevs: tuple[str, ...]
    ibdevs: tuple[str, ...]


class Kernel(Protocol):
    def state_version(self, vf: PciAddress) -> StateVersion:
        """Return the version of the VF's state, from sysfs alone. Unlike all other methods it may be called on the event loop:
        it asks no driver and waits for no lock."""

    # ---- namespaces

    def netns_id(self, netns: str) -> NetnsId | None:
        """Return the id of the namespace; None if there is none (any more)."""

    # ---- at the PF

    def read_vf(self, pf: PciAddress, index: int) -> VfConfig:
        """Return all settings of the VF that the PF's driver reports. Raise KernelError if the PF has no network device, or no
        such VF."""

    def set_vf(self, pf: PciAddress, index: int, config: VfConfig) -> None:
        """Set the fields that are not None, in this order: VLAN, MAC, rates, spoof check, trust, link state. The MAC is read
        back, and set again if the driver lost it. The MAC is set even if the PF reports it already: the PF may report the VF's
        own MAC, which the VF can change."""

    def release_mac(self, pf: PciAddress, index: int, *, unless: str) -> None:
        """Let a VF decide its MAC: remove the MAC that its PF was given. Do nothing if the PF reports the MAC `unless`."""

    def confirm_mac(self, pf: PciAddress, index: int, mac: str) -> None:
        """Set this MAC of a VF unless the PF reports it."""

    # ---- the VF's network device

    def host_link(self, vf: PciAddress) -> Link | None:
        """Return the VF's network device in the host's namespace, by whatever name; None if it is not there. Raise KernelError
        if the VF has several, one for each port: none is known to be the right one."""

    def link(self, netns: str | None, name: str) -> Link | None:
        """Return the device with this name; None if there is none. Raise NetnsMissingError."""

    def names(self, netns: str) -> frozenset[str]:
        """Return all names of devices in the namespace, alternative names too. Raise NetnsMissingError."""

    def set_link(
        self, netns: str | None, name: str, *, mac: str | None = None, mtu: int | None = None, up: bool | None = None
    ) -> None:
        """Set the device's MAC, MTU and state. The device goes down before the other changes, and up after them. A MAC is set
        only while the device is down. If the driver refuses the MAC, the device goes up and down, so that it takes its PF's
        MAC."""

    def take_mac(self, name: str, mac: str) -> bool:
        """Let a device of the host's namespace set its MAC by itself. Return whether its PF allowed it; True also if the device
        has that MAC already. The device is down afterwards."""

    def rename(self, name: str, to: str) -> None:
        """Rename a device in the host's namespace, and leave it down: kernels before 6.2 rename no device that is up. Raise
        KernelError if `to` is another device's own name. If `to` is another device's alternative name, remove it there: a pod
        may have given its device that name."""

    def set_altnames(self, name: str, altnames: tuple[str, ...]) -> None:
        """Give a device in the host's namespace these alternative names and no others. A name that is not available (any more)
        is left out."""

    def move_in(self, name: str, netns: str, netns_id: NetnsId, to: str) -> None:
        """Set a device down, then move it into the namespace and rename it in one request. The request fails as a whole if a
        device there has that name. The alternative names are removed: any of them may be in use there. Raise NetnsMissingError
        also if another namespace is at that path now."""

    def move_out(self, netns: str, netns_id: NetnsId, name: str, to: str) -> None:
        """Move a device back to the host's namespace; `to` is a name that is free there. Delete the devices that the pod made
        on top of it. Remove the alternative names too: a name in use on the host would prevent the move."""

    def configure(self, netns: str, name: str, *, addresses: tuple[str, ...], routes: tuple[Route, ...]) -> None:
        """Add the device's addresses, set it up, then add its routes. Existing addresses and routes stay."""

    def read_kept(self, vf: PciAddress, name: str) -> tuple[KeptSetting, ...]:
        """Return the settings that the VF's device in the host's namespace keeps when it changes its namespace. Name, MAC, MTU
        and alternative names are not among them. Settings that the kernel or the driver does not report are left out."""

    def restore_kept(self, vf: PciAddress, name: str, settings: tuple[KeptSetting, ...]) -> None:
        """Give the VF's device in the host's namespace these settings, and detach programs that it did not have. Raise
        KernelError with each setting that differs afterwards."""

    # ---- its RDMA device

    def rdma_mode(self) -> RdmaMode:
        """Return the RDMA network namespace mode of the whole machine."""

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        """Return the VF's RDMA device in the host's namespace: the device with this number. If there is none (any more), return
        the PCI function's device, by whatever name. Raise KernelError if the VF has several."""

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        """Move an RDMA device, by its number, into the namespace. The name of an ibdev is unique across all namespaces."""

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None: ...

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        """Return the devices that a process in this namespace sees. Raise NetnsMissingError."""

    def rdma_rename(self, ibdev: RdmaDevice, to: str) -> None:
        """Rename a device in the host's namespace, by its number. Raise NameTakenError if another device in any namespace has
        that name."""
