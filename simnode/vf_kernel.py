"""Provide the kernel for `lading-hooks` on a simulated node with VFs: this machine's kernel, and a model of SR-IOV hardware.

Namespaces, links, addresses and routes are real. Requests about a PF's settings of its VFs go, as bytes of netlink, to a model
of the VF table, whose state is a file. RDMA devices are names in a file. After a call that moves a device, the simulated sysfs
is updated, as a real kernel does. Each call is a point at which the daemon can be killed (`Points`).
"""

import json
import os
import signal
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from hooks.attach.kernel import Kernel, KernelError, NetnsMissingError
from hooks.attach.netlink import HostKernel
from hooks.host.attributes import read_names
from hooks.ledger.journal import Journal
from hooks.model.attachment import Link, NetnsId, RdmaDevice, RdmaMode
from lading.devices.identity import parse_pci_address
from lading.vocabulary import PciAddress
from simnode.child import replace_text
from simnode.links import find_link, list_links, open_socket
from simnode.vf_folder import RigFolder, mirror, netns_inode, read_json, settle_rdma
from simnode.vf_table import VfTable

_MOVES: Final = {"move_in", "move_out", "rename"}  # change what sysfs shows
_WRITES: Final = ("begin", "reach", "forget")


class Points:
    """Count the moments at which this process may be killed: after each call to the kernel, after each write of the journal."""

    def __init__(self, folder: RigFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def reached(self, name: str) -> None:
        with self._lock:
            try:
                kill_at = int(self._folder.kill_at.read_text())
            except FileNotFoundError:
                return
            with self._folder.points.open("a+") as points:
                points.write(f"{name}\n")
                points.seek(0)
                if len(points.readlines()) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    def follow(self, journal: type[Journal]) -> None:
        """Make each write of a journal a point, once it is on disk."""
        for name in _WRITES:
            setattr(journal, name, self._after(f"journal.{name}", getattr(journal, name)))

    def _after(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **named: Any) -> Any:
            answer = do(*args, **named)
            self.reached(name)
            return answer

        return done


class RigKernel(HostKernel):
    """Call the real kernel, and a model for settings that only hardware has."""

    def __init__(self, host_root: Path, folder: RigFolder) -> None:
        super().__init__(host_root, pf_exchange=VfTable(folder.pf_table).apply)
        self._folder = folder

    def host_link(self, vf: PciAddress) -> Link | None:
        return self._with_parent(None, super().host_link(vf))

    def link(self, netns: str | None, name: str) -> Link | None:
        return self._with_parent(netns, super().link(netns, name))

    def stands_alone(self, link: Link) -> bool:
        """Return True: the device below a veth is its other end."""
        return True

    def _with_parent(self, netns: str | None, link: Link | None) -> Link | None:
        """Add the parent: a veth has no function; its alias names the function for which it stands."""
        if link is None or self._folder.no_parents.exists():
            return link
        with open_socket(Path(netns) if netns else self._folder.netns) as asking:
            observed = find_link(asking, link.index)
        return replace(link, parent=(parse_pci_address(observed.alias) if observed else None) or "")

    def rdma_mode(self) -> RdmaMode:
        return RdmaMode.EXCLUSIVE if self._folder.rdma.exists() else RdmaMode.SHARED

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        with self._folder.locked():
            settle_rdma(self._host_root, self._folder)
            at_home = read_names(self._host_root / "sys/bus/pci/devices" / vf / "infiniband")
        return next(map(_numbered, at_home), None)

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        if netns_inode(netns) != netns_id.inode:
            raise NetnsMissingError(f"cannot move {ibdev.name} into {netns}: it is gone")
        self._place(ibdev.name, {"netns": netns, "inode": netns_id.inode})

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None:
        if netns_inode(netns) != netns_id.inode:
            raise NetnsMissingError(f"cannot move {ibdev.name} out of {netns}: it is gone")
        self._place(ibdev.name, None)

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        with self._folder.locked():
            settle_rdma(self._host_root, self._folder)
            away, inode = read_json(self._folder.rdma), netns_inode(netns)
        return frozenset(_numbered(ibdev) for ibdev, at in away.items() if at["inode"] == inode)

    def _place(self, ibdev: str, where: dict[str, object] | None) -> None:
        with self._folder.locked():
            away = read_json(self._folder.rdma)
            away.pop(ibdev, None)
            if where is not None:
                away[ibdev] = where
            replace_text(self._folder.rdma, json.dumps(away))
            settle_rdma(self._host_root, self._folder)


def _numbered(ibdev: str) -> RdmaDevice:
    """Return the device with a number computed from its name, the same each time: these devices are never renamed."""
    return RdmaDevice(zlib.crc32(ibdev.encode()), ibdev)


class _Watched:
    """Wrap every call of a kernel with the rig's actions before and after the call."""

    def __init__(self, kernel: Kernel, host_root: Path, folder: RigFolder, points: Points) -> None:
        self._kernel = kernel
        self._host_root = host_root
        self._folder = folder
        self._points = points
        self._asking = open_socket(folder.netns)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        do = getattr(self._kernel, name)

        def call(*args: Any, **named: Any) -> Any:
            if self._folder.failing.exists() and name in self._folder.failing.read_text().split():
                raise KernelError(f"cannot {name} {args}: the rig was told to fail it")
            try:
                return do(*args, **named)
            finally:
                if name in _MOVES:
                    with self._folder.locked():
                        mirror(self._host_root, list_links(self._asking))
                self._points.reached(f"kernel.{name}")

        return call


def rig_kernel(host_root: Path, folder: RigFolder, points: Points) -> Kernel:
    """Make the rig's kernel, in the rig's namespace, once."""
    return cast("Kernel", _Watched(RigKernel(host_root, folder), host_root, folder, points))
