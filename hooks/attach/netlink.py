"""Implement `kernel.Kernel` for a real host: rtnetlink for network devices and VFs, NETLINK_RDMA for ibdevs.

Each call opens its own sockets, each in the namespace that the socket is for, and closes them. A thread enters a pod's
namespace only to open a socket there (`namespaces`). The host's namespace is the calling thread's.

Linux does not move and rename a device in one step. If the device's old name is free in the target namespace, the kernel moves
the device first and renames it there (net/core/dev.c, __dev_change_net_namespace). If the new name is in use there, the device
stays there under its old name. So a move checks the new name first, and takes a device back that still ends up with its old
name. The kernel sets a device down that changes namespaces.

Alternative names go with a device from namespace to namespace. From Linux 6.6 the move fails if one of them is in use there. A
pod may give its device any name, also another VF's: so a device is moved without alternative names. A device that is renamed in
the host's namespace takes the name from any device that has it as an alternative name.
"""

import contextlib
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.attach import kept
from hooks.attach.kernel import Kernel, KernelError, NameTakenError, StateVersion, ask, attempting, refused
from hooks.attach.links import Links
from hooks.attach.messages import Exchange, RefusedError, parse_answer
from hooks.attach.namespaces import inside, opened, own, read_netns_id
from hooks.attach.rdma_netlink import list_devices, read_mode, render_move_device, render_rename_device
from hooks.attach.rtnetlink import parse_link, render_get_link
from hooks.attach.sockets import NETLINK_GENERIC, NETLINK_RDMA, NETLINK_ROUTE, NetlinkSocket
from hooks.attach.vf_settings import decide_changes, describe_change, parse_vfs, render_change, render_guids
from hooks.host.attributes import read_names
from hooks.host.binding import read_binding
from hooks.model.attachment import NO_MAC, KeptSetting, Link, NetnsId, RdmaDevice, RdmaMode, Route, VfConfig, VfLinkState
from lading.vocabulary import PciAddress

_HOST: Final = "the host"
_IPV6_SETTINGS: Final = Path("/proc/sys/net/ipv6/conf")
_NO_RDMA: Final = "EPROTONOSUPPORT: this kernel has no RDMA"

# Some firmware answers before it has set a MAC, or loses the MAC in a reset that is still in progress.
_MAC_TRIES: Final = 10
_MAC_PAUSE_S: Final = 0.1

# The drivers igbvf (igbvf_set_mac), iavf (iavf_set_mac) and ixgbevf (ixgbevf_set_mac), and firmware, return one of these errors
# if the PF refuses a VF's MAC.
_MAC_REFUSALS: Final = (errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES)


def exchange_with_kernel(request: bytes) -> bytes:
    """Send one rtnetlink request in the calling thread's namespace, and return the answer. Raise OSError."""
    with NetlinkSocket(NETLINK_ROUTE) as socket:
        return socket.exchange(request)


class HostKernel(Kernel):
    """Call the kernel of this host; many threads may do so at once. `pf_exchange` carries only the requests to PFs about their
    VFs. If the host's PCI functions are plain files, a table of VFs can replace it."""

    def __init__(self, host_root: Path, *, pf_exchange: Exchange = exchange_with_kernel) -> None:
        self._host_root = host_root
        self._functions = host_root / "sys/bus/pci/devices"
        self._pf_exchange = pf_exchange

    def state_version(self, vf: PciAddress) -> StateVersion:
        folder = self._functions / vf
        with attempting(f"read PCI function {vf}"):
            netdevs, ibdevs = read_names(folder / "net"), read_names(folder / "infiniband")
        return StateVersion(read_binding(self._host_root, vf), netdevs, ibdevs)

    # ---- namespaces

    def netns_id(self, netns: str) -> NetnsId | None:
        return read_netns_id(netns)

    # ---- the PF's side

    def read_vf(self, pf: PciAddress, index: int) -> VfConfig:
        return self._find_vf(pf, index)[1]

    def set_vf(self, pf: PciAddress, index: int, config: VfConfig) -> None:
        if not config.values:
            return
        pf_index, now = self._find_vf(pf, index)
        for change in decide_changes(now, config):
            self._set(pf, pf_index, index, change)
            if change.mac not in {None, NO_MAC}:  # a PF without a MAC for the VF may report the VF's own
                self._settle_mac(pf, pf_index, index, change)

    def release_mac(self, pf: PciAddress, index: int, *, unless: str) -> None:
        if self.read_vf(pf, index).mac != unless:
            self.set_vf(pf, index, VfConfig(mac=NO_MAC))

    def confirm_mac(self, pf: PciAddress, index: int, mac: str) -> None:
        if self.read_vf(pf, index).mac != mac:
            self.set_vf(pf, index, VfConfig(mac=mac))

    def _set(self, pf: PciAddress, pf_index: int, index: int, change: VfConfig) -> None:
        request = render_change(pf_index, index, change)
        ask(self._pf_exchange, request, f"set {describe_change(change)} of VF {index} of PF {pf}")

    def _settle_mac(self, pf: PciAddress, pf_index: int, index: int, change: VfConfig) -> None:
        for _ in range(_MAC_TRIES):
            mac = self.read_vf(pf, index).mac
            if mac == change.mac:
                return
            time.sleep(_MAC_PAUSE_S)
            self._set(pf, pf_index, index, change)
        raise KernelError(f"cannot set {describe_change(change)} of VF {index} of PF {pf}: its driver goes on with {mac}")

    def set_guid(self, pf: PciAddress, index: int, guid: int) -> None:
        """Set the node and the port GUID of an InfiniBand VF, and let its link follow the PF's port. The VF's driver reads the
        GUIDs when it is bound."""
        pf_index, _ = self._find_vf(pf, index)
        for request, which in zip(render_guids(pf_index, index, guid), ("node", "port"), strict=True):
            ask(self._pf_exchange, request, f"set the {which} GUID {guid.to_bytes(8).hex(':')} of VF {index} of PF {pf}")
        self.set_vf(pf, index, VfConfig(link_state=VfLinkState.AUTO))

    def _find_vf(self, pf: PciAddress, index: int) -> tuple[int, VfConfig]:
        """Return the index of the PF's network device, and the VF's settings. A PF in switchdev mode has several network
        devices, and one of them reports the VFs."""
        names = self._devices_of(pf)
        if not names:
            raise KernelError(f"cannot read VF {index} of PF {pf}: the PF has no network device")
        for name in names:
            with attempting(f"read the VFs of PF {pf} by network device {name}"):
                (message, *_) = parse_answer(self._pf_exchange(render_get_link(name)))
                link, vfs = parse_link(message), parse_vfs(message)
            if index in vfs and link.parent in {"", pf}:
                return link.index, vfs[index]
        raise KernelError(f"cannot read VF {index} of PF {pf}: {', '.join(names)} tells of no such VF")

    def _devices_of(self, function: PciAddress) -> tuple[str, ...]:
        """Return the names of the function's network devices in the host's namespace; sysfs shows no others."""
        with attempting(f"read the network devices of PCI function {function}"):
            return read_names(self._functions / function / "net")

    # ---- the VF's network device

    def host_link(self, vf: PciAddress) -> Link | None:
        with _links() as host:
            result = [link for name in self._devices_of(vf) if (link := host.find(name)) is not None]
        # The device from sysfs may be removed by now, and another function's device may have its name.
        own = [link for link in result if link.parent in {"", vf} and self.stands_alone(link)]
        if len(own) > 1:
            raise KernelError(
                f"cannot tell which network device of {vf} is meant: it has {' and '.join(link.name for link in own)}, one"
                " for each port; make VFs with one port (options mlx4_core num_vfs=4,4,0), or leave their network devices where"
                ' they are (netdev = false in hooks.toml, "netdev": false in the assignment)'
            )
        return next(iter(own), None)

    def stands_alone(self, link: Link) -> bool:
        """Return whether the link is the function's own device. A child of an InfiniBand device (ib0.8001) belongs to the same
        function, but does not count, even if the InfiniBand device is in another namespace."""
        return link.lower in {0, link.index}

    def link(self, netns: str | None, name: str) -> Link | None:
        with _links(netns) as links:
            return links.find(name)

    def names(self, netns: str) -> frozenset[str]:
        with _links(netns) as links:
            return links.names()

    def set_link(
        self, netns: str | None, name: str, *, mac: str | None = None, mtu: int | None = None, up: bool | None = None
    ) -> None:
        """Set the device's MAC, MTU and state. A device that is up goes down for a new MAC, and comes up again if the caller
        does not set `up`."""
        with _links(netns) as links:
            link = links.need(name)
            mac = None if mac == link.mac else mac
            mtu = None if mtu == link.mtu else mtu
            down = link.up and (up is False or mac is not None)
            if down:
                links.set_up(link, up=False)
            if mac is not None:
                _set_mac(links, link, mac)
            if mtu is not None:
                links.change(link, mac=None, mtu=mtu)
            wanted = link.up if up is None else up
            if wanted and (down or not link.up):
                links.set_up(link, up=True)

    def take_mac(self, name: str, mac: str) -> bool:
        with _links() as host:
            link = host.need(name)
            _set_down(host, link)
            try:
                host.change(link, mac=mac, mtu=None)
            except KernelError as e:
                if not refused(e, *_MAC_REFUSALS):
                    raise
                return False
            return True

    def rename(self, name: str, to: str) -> None:
        with _links() as host:
            link = host.find(name)
            if link is None and host.find(to) is not None:
                return
            link = link or host.need(name)
            if name != to:
                _set_down(host, link)
                host.free_altname(to)
                host.rename(link, to)

    def set_altnames(self, name: str, altnames: tuple[str, ...]) -> None:
        with _links() as host:
            link = host.need(name)
            for other in link.altnames:
                if other not in altnames:
                    host.drop_altname(link, other)
            for wanted in altnames:
                if wanted not in link.altnames:
                    with contextlib.suppress(KernelError):  # the name is in use by now, or the device has too many
                        host.add_altname(link, wanted)

    def move_in(self, name: str, netns: str, netns_id: NetnsId, to: str) -> None:
        with opened(netns, netns_id) as pod_fd, _links() as host, _links(netns, pod_fd) as pod:
            link = host.find(name)
            if link is None:
                _finish_move_in(pod, name, to)
                return
            if (other := pod.holder(to)) is not None:
                raise KernelError(
                    f"cannot move network device {name} to {netns} as {to}: EEXIST: there is another of that name"
                    f"{'' if other.name == to else f' ({other.name}, which has it as an alternative name)'}"
                )
            host.drop_altnames(link)
            try:
                host.move(link, pod_fd, to, netns)
            except KernelError:
                _take_back(host, pod, link)
                raise

    def move_out(self, netns: str, netns_id: NetnsId, name: str, to: str) -> None:
        with opened(netns, netns_id) as pod_fd, own() as host_fd, _links() as host, _links(netns, pod_fd) as pod:
            link, taken = pod.find(name), host.find(to)
            if link is None and taken is not None:
                return
            link = link or pod.need(name)
            if taken is not None:
                raise KernelError(f"cannot move network device {name} of {netns} to the host as {to}: EEXIST: it has another")
            pod.clear(link)
            pod.drop_altnames(link)
            host.free_altname(to)
            pod.move(link, host_fd, to, _HOST)

    def configure(self, netns: str, name: str, *, addresses: tuple[str, ...], routes: tuple[Route, ...]) -> None:
        with opened(netns) as pod_fd, _links(netns, pod_fd) as links:
            link = links.need(name)
            if any(":" in address for address in addresses):
                with inside(pod_fd):
                    _announce_ipv6(link.name)
            for address in addresses:
                links.add_address(link, address)
            if not link.up:
                links.announce(link)  # the kernel announces the addresses when the device comes up
                links.set_up(link, up=True)
            for route in routes:
                links.add_route(link, route)

    def read_kept(self, vf: PciAddress, name: str) -> tuple[KeptSetting, ...]:
        with self._kept_of(vf, name) as (link, sources):
            return kept.read_kept(link, sources)

    def restore_kept(self, vf: PciAddress, name: str, settings: tuple[KeptSetting, ...]) -> None:
        with self._kept_of(vf, name) as (link, sources):
            kept.restore_kept(link, sources, settings)

    @contextlib.contextmanager
    def _kept_of(self, vf: PciAddress, name: str) -> Iterator[tuple[Link, tuple[kept.Source, ...]]]:
        with _socket(NETLINK_ROUTE) as route, _socket(NETLINK_GENERIC) as generic:
            link = Links(route.exchange, _HOST).need(name)
            folder = self._functions / vf / "net" / name
            yield link, kept.sources_of(link, route=route.exchange, generic=generic.exchange, folder=folder)

    # ---- its RDMA device

    def rdma_mode(self) -> RdmaMode:
        with _rdma() as exchange:
            if exchange is None:
                return RdmaMode.NONE
            with attempting("read the RDMA network namespace mode"):
                return read_mode(exchange)

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        with _rdma() as exchange, attempting(f"find the RDMA device of {vf}"):
            devices = frozenset() if exchange is None else list_devices(exchange)
            # The number is tried first: if a pod chose the device's name, sysfs may not even list it.
            if known := next((device for device in devices if device.number == number), None):
                return known
            names = read_names(self._functions / vf / "infiniband")
            result = [device for device in devices if device.name in names]
        if len(result) > 1:
            raise KernelError(f"cannot tell which RDMA device of {vf} is meant: it has {' and '.join(names)}")
        return next(iter(result), None)

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        with opened(netns, netns_id) as pod_fd, _rdma() as host, _rdma(pod_fd) as pod:
            _move_rdma(ibdev, source=host, target=pod, target_fd=pod_fd, doing=f"move RDMA device {ibdev.name} to {netns}")

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None:
        with opened(netns, netns_id) as pod_fd, own() as host_fd, _rdma() as host, _rdma(pod_fd) as pod:
            doing = f"move RDMA device {ibdev.name} of {netns} to {_HOST}"
            _move_rdma(ibdev, source=pod, target=host, target_fd=host_fd, doing=doing)

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        with opened(netns) as pod_fd, _rdma(pod_fd) as exchange, attempting(f"list the RDMA devices of {netns}"):
            return frozenset() if exchange is None else list_devices(exchange)

    def rdma_rename(self, ibdev: RdmaDevice, to: str) -> None:
        doing = f"rename RDMA device {ibdev.name} of {_HOST} to {to}"
        with _rdma() as exchange:
            if exchange is None:
                raise KernelError(f"cannot {doing}: {_NO_RDMA}")
            try:
                with attempting(doing):
                    if RdmaDevice(ibdev.number, to) not in list_devices(exchange):
                        parse_answer(exchange(render_rename_device(ibdev.number, to)))
            except KernelError as e:
                if refused(e, errno.EEXIST):
                    raise NameTakenError(e.message) from e
                raise


def _announce_ipv6(device: str) -> None:
    """Make IPv6 addresses of a device usable, and known to its neighbours, as soon as the device is up. The device is in the
    namespace of the calling thread.

    With `optimistic_dad` (RFC 4429), a program may use an address while duplicate address detection runs, for one second. With
    `ndisc_notify`, the kernel sends a neighbour advertisement when the device comes up (RFC 4861, section 7.2.6). Otherwise
    neighbours keep the MAC of another VF, which had the address before, until they find it unreachable."""
    for setting in ("optimistic_dad", "ndisc_notify"):
        with contextlib.suppress(OSError):  # the address works without it, a second later
            (_IPV6_SETTINGS / device / setting).write_text("1")


def _set_down(links: Links, link: Link) -> None:
    if link.up:
        links.set_up(link, up=False)


def _set_mac(links: Links, link: Link, mac: str) -> None:
    """Set the MAC of a device that is down, and leave it down. If the driver refuses the MAC, the device takes its PF's MAC
    when it comes up."""
    try:
        links.change(link, mac=mac, mtu=None)
    except KernelError as e:
        if not refused(e, *_MAC_REFUSALS):
            raise
        links.set_up(link, up=True)
        links.set_up(link, up=False)
        if links.need(link.name).mac != mac:
            links.change(link, mac=mac, mtu=None)


def _finish_move_in(pod: Links, name: str, to: str) -> None:
    """Finish an interrupted move: rename a device that is in the pod under its old name. Do nothing if the move was
    complete."""
    if pod.find(to) is None:
        stranded = pod.need(name)
        _set_down(pod, stranded)
        pod.rename(stranded, to)


def _take_back(host: Links, pod: Links, link: Link) -> None:
    there = host.find(link.name)
    if there is None or there.index != link.index:
        with own() as host_fd:
            pod.move(pod.need(link.name), host_fd, link.name, _HOST)


def _move_rdma(ibdev: RdmaDevice, *, source: Exchange | None, target: Exchange | None, target_fd: int, doing: str) -> None:
    if source is None or target is None:
        raise KernelError(f"cannot {doing}: {_NO_RDMA}")
    with attempting(doing):
        if _has(source, ibdev):
            parse_answer(source(render_move_device(ibdev.number, target_fd)))
        elif not _has(target, ibdev):
            raise RefusedError(errno.ENODEV)


def _has(exchange: Exchange, ibdev: RdmaDevice) -> bool:
    return any(device.number == ibdev.number for device in list_devices(exchange))


@contextlib.contextmanager
def _links(netns: str | None = None, netns_fd: int | None = None) -> Iterator[Links]:
    """Yield the devices of the namespace, by default the host's. `netns_fd`: a descriptor of it, if the caller has one."""
    opening = opened(netns) if netns is not None and netns_fd is None else contextlib.nullcontext(netns_fd)
    with opening as fd, _socket(NETLINK_ROUTE, fd) as socket:
        yield Links(socket.exchange, netns or _HOST)


@contextlib.contextmanager
def _rdma(netns_fd: int | None = None) -> Iterator[Exchange | None]:
    """Open a NETLINK_RDMA socket, and yield its exchange; None if this kernel has no RDMA."""
    try:
        socket = _socket(NETLINK_RDMA, netns_fd)
    except KernelError as e:
        if not isinstance(e.__cause__, OSError) or e.__cause__.errno != errno.EPROTONOSUPPORT:
            raise
        yield None
        return
    with socket:
        yield socket.exchange


def _socket(protocol: int, netns_fd: int | None = None) -> NetlinkSocket:
    """Open a socket in the descriptor's namespace; without a descriptor in the calling thread's, which is the host's."""
    with attempting("open a netlink socket"), contextlib.nullcontext() if netns_fd is None else inside(netns_fd):
        return NetlinkSocket(protocol)
