"""Test RDMA devices and namespaces: the mode of this machine's kernel, and moves with a model of the kernel's RDMA.

Kernels of test machines have no RDMA, or one without devices: `nldev` is a model here, the namespaces are real.
"""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from hooks.attach.kernel import KernelError, NameTakenError
from hooks.attach.messages import parse_attributes, render_attribute, render_message
from hooks.attach.netlink import HostKernel
from hooks.attach.sockets import NETLINK_RDMA, NetlinkSocket
from hooks.model.attachment import NetnsId, RdmaDevice, RdmaMode
from lading.vocabulary import PciAddress
from tests.fakes.namespaces import Netns, id_of_thread
from tests.fakes.needs import need

pytestmark = pytest.mark.node

_KERNEL = HostKernel(Path("/"))


@pytest.fixture
def host() -> Iterator[Netns]:
    need(os.geteuid() == 0, "root")
    with Netns() as host:
        yield host


@pytest.fixture
def pod(host: Netns) -> Iterator[Netns]:
    with Netns() as pod:
        yield pod


class Nldev:
    """Read the namespace and the name of each ibdev by its number. A socket shows the ibdevs of the namespace in which it was
    created."""

    def __init__(self, *devices: tuple[str, NetnsId]) -> None:
        self.names = {number: name for number, (name, _) in enumerate(devices)}
        self.where = {number: netns for number, (_, netns) in enumerate(devices)}

    def socket(self, protocol: int) -> "NetlinkSocket | NldevSocket":
        return NldevSocket(self) if protocol == NETLINK_RDMA else NetlinkSocket(protocol)


class NldevSocket:
    def __init__(self, nldev: Nldev) -> None:
        self._nldev = nldev
        self._netns = id_of_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def exchange(self, request: bytes) -> bytes:
        names, where = self._nldev.names, self._nldev.where
        kind: int = struct.unpack_from("=H", request, 4)[0]
        if kind & 0x3FF == 1:
            observed = [(number, name) for number, name in names.items() if where[number] == self._netns]
            devices = (
                render_attribute(1, struct.pack("=I", i)) + render_attribute(2, name.encode() + b"\0") for i, name in observed
            )
            return b"".join(render_message(kind, 2, device) for device in devices) + render_message(3, 2, bytes(4))
        attributes = dict(parse_attributes(request[16:]))
        (number,) = struct.unpack("=I", attributes[1])
        assert where[number] == self._netns
        if 2 in attributes:
            name = attributes[2].rstrip(b"\0").decode()
            if name in names.values():
                return render_message(2, 0, struct.pack("=i", -errno.EEXIST) + bytes(16))
            names[number] = name
        else:
            result = os.fstat(struct.unpack("=I", attributes[68])[0])
            where[number] = NetnsId(device=result.st_dev, inode=result.st_ino)
        return render_message(2, 0, bytes(20))


@pytest.fixture
def nldev(host: Netns, monkeypatch: pytest.MonkeyPatch) -> Nldev:
    nldev = Nldev(("mlx5_1", host.id), ("mlx5_10", host.id))
    monkeypatch.setattr("hooks.attach.netlink.NetlinkSocket", nldev.socket)
    return nldev


def test_an_rdma_device_goes_in_and_comes_back(host: Netns, pod: Netns, nldev: Nldev) -> None:
    ibdev = RdmaDevice(1, "mlx5_10")
    for _ in range(2):  # the second time finds it done
        host.run(lambda: _KERNEL.rdma_move_in(ibdev, pod.path, pod.id))
        assert nldev.where == {0: host.id, 1: pod.id}
    assert host.run(lambda: _KERNEL.rdma_devices(pod.path)) == {ibdev}
    nldev.names = {0: "mlx5_10", 1: "mine"}  # it is the number that tells
    for _ in range(2):
        host.run(lambda: _KERNEL.rdma_move_out(pod.path, pod.id, ibdev))
        assert nldev.where == {0: host.id, 1: host.id}
    with pytest.raises(KernelError, match="mlx5_7"):
        host.run(lambda: _KERNEL.rdma_move_in(RdmaDevice(7, "mlx5_7"), pod.path, pod.id))


def test_an_rdma_device_is_found_by_number_and_by_function(host: Netns, pod: Netns, nldev: Nldev, tmp_path: Path) -> None:
    kernel = HostKernel(tmp_path)
    vf = PciAddress("0000:18:00.2")
    folder = tmp_path / "sys/bus/pci/devices" / vf / "infiniband"
    (folder / "mlx5_10").mkdir(parents=True)

    def found(number: int | None) -> RdmaDevice | None:
        return host.run(lambda: kernel.host_ibdev(vf, number))

    assert found(None) == found(1) == RdmaDevice(1, "mlx5_10")
    nldev.names[1] = "mine"
    assert found(1) == RdmaDevice(1, "mine")  # whatever sysfs says, which may not even be listed
    assert found(None) is None
    (folder / "mlx5_10").rename(folder / "mine")
    assert found(5) == RdmaDevice(1, "mine")  # made anew by its driver
    nldev.where[1] = pod.id
    assert found(1) is None
    nldev.where[1] = host.id
    (folder / "mlx5_1").mkdir()
    with pytest.raises(KernelError, match="mine and mlx5_1"):
        found(None)


def test_an_rdma_device_is_named(host: Netns, nldev: Nldev) -> None:
    for _ in range(2):
        host.run(lambda: _KERNEL.rdma_rename(RdmaDevice(1, "mlx5_10"), "mlx5_2"))
        assert nldev.names == {0: "mlx5_1", 1: "mlx5_2"}
    with pytest.raises(NameTakenError, match="mlx5_1"):
        host.run(lambda: _KERNEL.rdma_rename(RdmaDevice(1, "mlx5_2"), "mlx5_1"))


def without_rdma(protocol: int) -> NetlinkSocket:
    if protocol == NETLINK_RDMA:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
    return NetlinkSocket(protocol)


def test_a_kernel_without_rdma_is_no_fault(host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooks.attach.netlink.NetlinkSocket", without_rdma)
    assert _KERNEL.rdma_mode() is RdmaMode.NONE
    assert host.run(lambda: _KERNEL.rdma_devices(pod.path)) == frozenset()
    with pytest.raises(KernelError, match="EPROTONOSUPPORT"):
        host.run(lambda: _KERNEL.rdma_move_in(RdmaDevice(0, "mlx5_1"), pod.path, pod.id))


def test_the_mode_of_this_machine_is_read() -> None:
    """Compare the mode with the kernel's. It is NONE on a machine without RDMA, where sockets of its protocol are refused."""
    try:
        NetlinkSocket(NETLINK_RDMA).close()
    except OSError:
        assert _KERNEL.rdma_mode() is RdmaMode.NONE
    else:
        assert _KERNEL.rdma_mode() is not RdmaMode.NONE
