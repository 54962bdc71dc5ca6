"""Test calls of the real kernel with veth and macvlan devices in place of VFs, in network namespaces made for each test.

The host's namespace is a made one too, so the machine's devices are not changed. Tests of the PF's settings are in
tests/unit/hooks/attach/test_netlink.py.
"""

import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hooks.attach.kernel import Kernel, KernelError, NetnsMissingError, refused
from hooks.attach.links import Links
from hooks.attach.messages import RefusedError
from hooks.attach.netlink import HostKernel
from hooks.attach.sockets import NetlinkSocket
from hooks.model.attachment import Link, NetnsId, Route
from lading.vocabulary import PciAddress
from tests.fakes.namespaces import Netns, id_of_thread

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("needs_namespaces")]

_ETH_P_ARP = 0x0806
_ETH_P_IPV6 = 0x86DD
_IPV6_HEADER = 40  # octets
_NEIGHBOUR_ADVERTISEMENT = 136
_VF = PciAddress("0000:18:00.2")
_MAC = "02:00:5e:10:00:01"


# ---- namespaces


def test_a_namespace_is_reported_by_its_file(pod: Netns, kernel: Kernel) -> None:
    result = Path(pod.path).stat()
    assert kernel.netns_id(pod.path) == NetnsId(device=result.st_dev, inode=result.st_ino) == pod.id


def test_what_is_no_network_namespace_is_none(tmp_path: Path, kernel: Kernel) -> None:
    left = tmp_path / "cni-1"
    left.touch()  # an unmount leaves an empty file
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    paths = (
        left,
        pipe,
        loop,
        tmp_path,
        tmp_path / "absent",
        left / "below",
        "/dev/null",
        "/proc/self/ns/mnt",
        "/proc/0/ns/net",
    )
    assert {str(path): kernel.netns_id(str(path)) for path in paths} == {str(path): None for path in paths}


def test_a_namespace_that_is_deleted(host: Netns, pod: Netns, kernel: Kernel) -> None:
    path, netns_id = pod.path, pod.id
    pod.close()
    assert kernel.netns_id(path) is None
    for call in (
        partial(kernel.link, path, "rdma0"),
        partial(kernel.set_link, path, "rdma0", up=True),
        partial(kernel.move_in, "vf0", path, netns_id, "rdma0"),
        partial(kernel.move_out, path, netns_id, "rdma0", "vf0"),
        partial(kernel.configure, path, "rdma0", addresses=(), routes=()),
        partial(kernel.rdma_devices, path),
    ):
        with pytest.raises(NetnsMissingError):
            host.run(call)
    assert host.links()["vf0"]["flags"].count("UP") == 1


def test_another_namespace_at_the_path(host: Netns, pod: Netns, kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "cni-1"
    path.symlink_to(pod.path)
    wanted = kernel.netns_id(str(path))
    assert wanted == pod.id
    with Netns() as other:
        path.unlink()
        path.symlink_to(other.path)
        with pytest.raises(NetnsMissingError):
            host.run(lambda: kernel.move_in("vf0", str(path), pod.id, "rdma0"))
        assert (other.links(), pod.links()) == ({}, {})
    assert "vf0" in host.links()


def test_the_hosts_own_namespace_is_no_pods(host: Netns, kernel: Kernel) -> None:
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.move_in("vf0", host.path, host.id, "rdma0"))
    assert not isinstance(caught.value, NetnsMissingError)
    assert "vf0" in host.links()


# ---- in and out


@pytest.mark.parametrize("kind", ["veth", "macvlan"])
def test_a_device_goes_in_and_comes_back(host: Netns, pod: Netns, kernel: Kernel, kind: str) -> None:
    if kind == "macvlan":
        host.ip("link add link peer0 name vf1 type macvlan")
    name = "vf0" if kind == "veth" else "vf1"
    before = host.links()[name]
    for _ in range(2):  # the second time finds it done
        host.run(lambda: kernel.move_in(name, pod.path, pod.id, "rdma0"))
        assert name not in host.links()
        assert list(pod.links()) == ["rdma0"]
    inside = pod.links()["rdma0"]
    assert (inside["address"], inside["mtu"]) == (before["address"], before["mtu"])
    assert "UP" not in inside["flags"]
    pod.ip("link set rdma0 up")
    for _ in range(2):
        host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "ld0000180002"))
        assert pod.links() == {}
    assert "UP" not in host.links()["ld0000180002"]["flags"]
    assert host.links()["ld0000180002"]["address"] == before["address"]


def test_a_name_that_the_pod_has_is_refused_and_the_device_stays(host: Netns, pod: Netns, kernel: Kernel) -> None:
    pod.ip("link add rdma0 type veth peer name other")
    stranger = pod.links()["rdma0"]
    with pytest.raises(KernelError, match="EEXIST"):
        host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    assert "UP" in host.links()["vf0"]["flags"]
    assert pod.links()["rdma0"]["address"] == stranger["address"]
    assert "vf0" not in pod.links()


@pytest.mark.parametrize("old_name_taken", [False, True])
def test_a_name_that_is_taken_meanwhile_strands_no_device(
    host: Netns, pod: Netns, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, old_name_taken: bool
) -> None:
    """Check both ways of Linux: it moves the device first and then renames it where the old name is free in the target; where
    the old name is taken, it refuses the whole request."""
    pod.ip(f"link add rdma0 type veth peer name {'vf0' if old_name_taken else 'other'}")
    address = host.links()["vf0"]["address"]
    holder = Links.holder

    def blind(self: Links, name: str) -> Link | None:
        return None if name == "rdma0" else holder(self, name)

    monkeypatch.setattr(Links, "holder", blind)
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    assert refused(caught.value, errno.EEXIST)
    assert host.links()["vf0"]["address"] == address
    assert address not in {link["address"] for link in pod.links().values()}


def test_a_move_that_got_half_way_is_finished(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.ip(f"link set vf0 netns {pod.path}")
    pod.ip("link set vf0 up")
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    assert list(pod.links()) == ["rdma0"]


def test_a_name_that_the_host_has_is_refused_and_the_device_stays(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    host.ip("link add vf0 type veth peer name other")
    with pytest.raises(KernelError, match="EEXIST"):
        host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "vf0"))
    assert list(pod.links()) == ["rdma0"]


def test_a_device_that_is_nowhere_is_an_error(host: Netns, pod: Netns, kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="ENODEV"):
        host.run(lambda: kernel.move_in("vf9", pod.path, pod.id, "rdma0"))
    with pytest.raises(KernelError, match="ENODEV"):
        host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "vf9"))


# ---- one device


def test_links_are_found_by_their_whole_name(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.ip("link property add dev vf0 altname first-vf")
    there = host.links()["vf0"]
    assert host.run(lambda: kernel.link(None, "vf0")) == Link(
        index=there["ifindex"],
        name="vf0",
        mac=there["address"],
        mtu=1500,
        up=True,
        altnames=("first-vf",),
        lower=host.links()["peer0"]["ifindex"],
    )
    assert host.run(lambda: kernel.link(None, "first-vf")) is None
    assert host.run(lambda: kernel.link(pod.path, "vf0")) is None
    lo = host.run(lambda: kernel.link(pod.path, "lo"))
    assert lo is not None
    assert not lo.up


def test_a_functions_device_is_found_by_whatever_name(host: Netns, pod: Netns, kernel: Kernel, tmp_path: Path) -> None:
    host.ip(f"link set peer0 netns {pod.path}")
    folder = tmp_path / "sys/bus/pci/devices" / _VF / "net"
    assert host.run(lambda: kernel.host_link(_VF)) is None
    (folder / "vf0").mkdir(parents=True)
    link = host.run(lambda: kernel.host_link(_VF))
    assert link is not None
    assert link.name == "vf0"
    (folder / "vf0").rename(folder / "gone")  # sysfs was read, then it left
    assert host.run(lambda: kernel.host_link(_VF)) is None


def test_of_a_functions_devices_those_that_stand_on_it_are_not_meant(
    host: Netns, pod: Netns, kernel: Kernel, tmp_path: Path
) -> None:
    """Check that InfiniBand's child devices are not taken for the function's own device, in the host or in a pod."""
    host.ip(f"link set peer0 netns {pod.path}")
    host.ip("link add link vf0 name a0.8001 type macvlan")
    for name in ("vf0", "a0.8001"):
        (tmp_path / "sys/bus/pci/devices" / _VF / "net" / name).mkdir(parents=True)
    link = host.run(lambda: kernel.host_link(_VF))
    assert link is not None
    assert link.name == "vf0"


def test_a_function_with_a_device_for_each_port_is_refused_by_name(
    host: Netns, pod: Netns, kernel: Kernel, tmp_path: Path
) -> None:
    """Check two devices of one function, as ConnectX-3 has."""
    host.ip(f"link set peer0 netns {pod.path}")
    host.ip(f"link add vf0d1 type veth peer name peer1 netns {pod.path}")
    for name in ("vf0", "vf0d1"):
        (tmp_path / "sys/bus/pci/devices" / _VF / "net" / name).mkdir(parents=True)
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.host_link(_VF))
    assert all(word in caught.value.message for word in (_VF, "vf0 and vf0d1", "netdev"))


def test_a_device_comes_back_by_whatever_octets_a_pod_named_it(host: Netns, pod: Netns, kernel: Kernel, tmp_path: Path) -> None:
    host.ip(f"link set peer0 netns {pod.path}")
    name = os.fsdecode(b"\xff\xfe")
    host.ip("link set vf0 down")
    host.ip(f"link set vf0 name {name}")
    (tmp_path / "sys/bus/pci/devices" / _VF / "net" / name).mkdir(parents=True)

    def bring_back() -> None:
        link = kernel.host_link(_VF)
        assert link is not None
        kernel.set_link(None, link.name, mac=_MAC, mtu=1400, up=False)
        kernel.rename(link.name, "vf0")

    host.run(bring_back)
    assert host.links()["vf0"]["address"] == _MAC


def test_a_sysfs_that_cannot_be_read_is_no_absence(host: Netns, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> tuple[str, ...]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("hooks.attach.netlink.read_names", fail)
    with pytest.raises(KernelError, match="EIO"):
        host.run(lambda: kernel.host_link(_VF))


def test_a_link_is_set_and_set_again(host: Netns, kernel: Kernel) -> None:
    for _ in range(2):
        host.run(lambda: kernel.set_link(None, "vf0", mac=_MAC, mtu=1400))
        there = host.links()["vf0"]
        assert (there["address"], there["mtu"], "UP" in there["flags"]) == (_MAC, 1400, True)
    host.run(lambda: kernel.set_link(None, "vf0", up=False))
    assert "UP" not in host.links()["vf0"]["flags"]
    host.run(lambda: kernel.set_link(None, "vf0", mtu=1500))
    assert "UP" not in host.links()["vf0"]["flags"]
    host.run(lambda: kernel.set_link(None, "vf0", mac="02:00:5e:10:00:02", up=True))
    there = host.links()["vf0"]
    assert (there["address"], "UP" in there["flags"]) == ("02:00:5e:10:00:02", True)


def refuse_macs(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Do what igbvf does with a MAC that its PF was given: refuse any other (igbvf_set_mac), and take it when the device is
    opened (igbvf_reset). The rest is the kernel's and a veth's."""
    change, set_up = Links.change, Links.set_up

    def refuse(self: Links, link: Link, *, mac: str | None, mtu: int | None) -> None:
        if mac is not None:
            raise KernelError(f"cannot set MAC {mac}") from RefusedError(errno.EADDRNOTAVAIL)
        change(self, link, mac=None, mtu=mtu)

    def reset(self: Links, link: Link, *, up: bool) -> None:
        set_up(self, link, up=up)
        if up:
            change(self, link, mac=given, mtu=None)

    monkeypatch.setattr(Links, "change", refuse)
    monkeypatch.setattr(Links, "set_up", reset)


def test_a_device_takes_the_mac_that_its_pf_was_given(host: Netns, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_macs(monkeypatch, given=_MAC)
    host.run(lambda: kernel.set_link(None, "vf0", mac=_MAC, mtu=1400, up=False))
    there = host.links()["vf0"]
    assert (there["address"], there["mtu"], "UP" in there["flags"]) == (_MAC, 1400, False)
    with pytest.raises(KernelError, match="02:00:5e:10:00:02"):
        host.run(lambda: kernel.set_link(None, "vf0", mac="02:00:5e:10:00:02", up=False))


def test_a_device_shows_whether_its_pf_lets_it_set_its_mac(
    host: Netns, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.run(lambda: kernel.take_mac("vf0", _MAC))
    there = host.links()["vf0"]
    assert (there["address"], "UP" in there["flags"]) == (_MAC, False)
    refuse_macs(monkeypatch, given=_MAC)
    assert not host.run(lambda: kernel.take_mac("vf0", "02:00:5e:10:00:02"))
    assert host.links()["vf0"]["address"] == _MAC


def test_a_refusal_names_what_was_asked_of_which_device_and_the_kernels_words(host: Netns, kernel: Kernel) -> None:
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.set_link(None, "vf0", mtu=99_999_999))
    assert refused(caught.value, errno.EINVAL)
    assert all(word in caught.value.message for word in ("99999999", "vf0", "EINVAL", "mtu greater than device maximum"))


def test_a_device_that_is_not_there_is_not_set(host: Netns, kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="vf9"):
        host.run(lambda: kernel.set_link(None, "vf9", up=True))


def test_what_a_pod_made_on_its_device_does_not_stay_on_it(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Check that the pod's virtual device is deleted: it would otherwise see the traffic of the VF's next owner while the
    namespace exists."""
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    pod.ip("link add spy link rdma0 type macvlan mode bridge")
    pod.ip("link add eth0 type veth peer name eth1")
    host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "back0"))
    assert sorted(host.links()) == ["back0", "peer0"]
    assert sorted(pod.links()) == ["eth0", "eth1"]


def test_a_device_is_renamed_once(host: Netns, kernel: Kernel) -> None:
    for _ in range(2):
        host.run(lambda: kernel.rename("vf0", "ens1f0v0"))
        assert sorted(host.links()) == ["ens1f0v0", "peer0"]
    host.run(lambda: kernel.rename("ens1f0v0", "ens1f0v0"))
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.rename("ens1f0v0", "peer0"))
    assert refused(caught.value, errno.EEXIST)
    assert sorted(host.links()) == ["ens1f0v0", "peer0"]
    with pytest.raises(KernelError, match="ENODEV"):
        host.run(lambda: kernel.rename("vf0", "vf1"))


# ---- addresses and routes


def addresses_of(netns: Netns, name: str) -> set[str]:
    (device,) = netns.show(f"address show dev {name}")
    return {f"{each['local']}/{each['prefixlen']}" for each in device["addr_info"] if each["scope"] == "global"}


def routes_of(netns: Netns, name: str) -> set[tuple[str, str]]:
    result: list[dict[str, Any]] = netns.show(f"route show dev {name}") + netns.show(f"-6 route show dev {name}")
    return {(route["dst"], route.get("gateway", "")) for route in result if route.get("protocol", "boot") == "boot"}


def test_addresses_and_routes_of_both_families(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    addresses = ("10.0.0.2/24", "fd00::2/64")
    routes = (
        Route("10.1.0.0/16", "10.0.0.1"),
        Route("10.2.0.0/16"),
        Route("0.0.0.0/0", "10.0.0.1"),
        Route("fd01::/64", "fd00::1"),
        Route("fd02::/64"),
        Route("::/0", "fd00::1"),
    )
    for _ in range(2):
        host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=addresses, routes=routes))
        assert "UP" in pod.links()["rdma0"]["flags"]
        assert addresses_of(pod, "rdma0") == set(addresses)
        default = {("default", "10.0.0.1"), ("default", "fd00::1")}
        assert routes_of(pod, "rdma0") == {tuple(route) for route in routes if not route.to.endswith("/0")} | default


def test_neighbours_learn_the_mac_of_an_address(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Check that a gratuitous ARP is sent: neighbours may have cached the address from an earlier pod, with another VF's
    MAC."""
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    with host.run(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ARP))) as neighbour:
        neighbour.settimeout(10)
        host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=("10.0.0.2/24",), routes=()))
        arp = neighbour.recv(64)
    assert (arp[14:18], arp[24:28]) == (bytes([10, 0, 0, 2]),) * 2  # sender and target
    assert arp[8:14].hex(":") == pod.links()["rdma0"]["address"]


def test_neighbours_learn_the_mac_of_an_ipv6_address(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Check that all nodes get an unsolicited neighbour advertisement (RFC 4861, section 7.2.6) with the device's MAC as an
    option."""
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    with host.run(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IPV6))) as neighbour:
        neighbour.settimeout(10)
        host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=("fd00::2/64",), routes=()))
        advertised = next(packet[_IPV6_HEADER:] for packet in iter(lambda: neighbour.recv(256), b"") if _advertises(packet))
    assert advertised[8:24] == socket.inet_pton(socket.AF_INET6, "fd00::2")
    assert advertised[26:32].hex(":") == pod.links()["rdma0"]["address"]


def _advertises(packet: bytes) -> bool:
    """Tell whether an IPv6 packet is a neighbour advertisement for an address that is not link-local."""
    return (
        packet[6] == socket.IPPROTO_ICMPV6 and packet[_IPV6_HEADER] == _NEIGHBOUR_ADVERTISEMENT and packet[48:50] != b"\xfe\x80"
    )


def test_a_program_uses_an_ipv6_address_at_once(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Use the address while duplicate address detection still runs, which takes a second."""
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=("fd00::2/64",), routes=()))
    with pod.run(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as program:
        program.bind(("fd00::2", 0))


def test_what_someone_else_configured_stays(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    pod.ip("address add 192.168.7.7/32 dev rdma0")
    host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=("10.0.0.2/24",), routes=()))
    assert addresses_of(pod, "rdma0") == {"192.168.7.7/32", "10.0.0.2/24"}


@pytest.mark.parametrize("route", [Route("0.0.0.0/0", "10.0.0.1"), Route("::/0", "fd00::1")])
def test_a_route_that_goes_another_way_is_an_error(host: Netns, pod: Netns, kernel: Kernel, route: Route) -> None:
    """Check a pod with a default route of its own by the same gateway: an added route beside it would never be used."""
    pod.ip("link add eth0 type veth peer name other")
    for text in (
        "address add 10.0.0.9/24 dev eth0",
        "address add fd00::9/64 dev eth0",
        "link set eth0 up",
        "link set other up",
    ):
        pod.ip(text)
    pod.ip("route add default via 10.0.0.1")
    pod.ip("route add default via fd00::1")
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    configure = partial(kernel.configure, pod.path, "rdma0", addresses=("10.0.0.2/24", "fd00::2/64"))
    with pytest.raises(KernelError, match=route.to) as caught:
        host.run(lambda: configure(routes=(route,)))
    assert refused(caught.value, errno.EEXIST)
    assert routes_of(pod, "rdma0") == set()


def test_a_gateway_that_is_not_reached_is_an_error(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    with pytest.raises(KernelError, match="invalid gateway") as caught:
        host.run(lambda: kernel.configure(pod.path, "rdma0", addresses=(), routes=(Route("10.1.0.0/16", "10.0.0.1"),)))
    assert refused(caught.value, errno.ENETUNREACH)


# ---- what stays behind


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_many_at_once_leave_nothing_and_no_thread_elsewhere(host: Netns, kernel: Kernel) -> None:
    count = 16
    for number in range(1, count):
        host.ip(f"link add vf{number} type veth peer name peer{number}")
    descriptors, threads = open_files(), set(threading.enumerate())

    def live(number: int) -> None:
        with Netns() as pod:
            name, path, netns_id = f"vf{number}", pod.path, pod.id

            def once() -> NetnsId:
                kernel.move_in(name, path, netns_id, "rdma0")
                kernel.configure(path, "rdma0", addresses=(f"10.0.{number}.2/24",), routes=(Route("10.200.0.0/16"),))
                with pytest.raises(KernelError):
                    kernel.set_link(path, "rdma9", up=True)
                kernel.move_out(path, netns_id, "rdma0", name)
                with pytest.raises(KernelError):
                    kernel.rename(name, "peer0")
                return id_of_thread()

            for _ in range(3):
                assert host.run(once) == host.id

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(live, range(count)))
    assert sorted(host.links()) == sorted(f"{kind}{number}" for kind in ("vf", "peer") for number in range(count))
    assert open_files() == descriptors
    assert set(threading.enumerate()) <= threads


def test_an_error_on_the_way_in_leaves_the_thread_where_it_was(
    host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> NetlinkSocket:
        raise OSError(errno.EMFILE, "too many open files")

    kernel = HostKernel(Path("/"))
    monkeypatch.setattr("hooks.attach.netlink.NetlinkSocket", refuse)

    def once() -> NetnsId:
        with pytest.raises(KernelError, match="EMFILE"):
            kernel.link(pod.path, "lo")
        return id_of_thread()

    assert host.run(once) == host.id
