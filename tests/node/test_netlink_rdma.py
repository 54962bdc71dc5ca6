"""RDMA devices and namespaces: what the kernel of this machine says, and moves with its side played.

Kernels of test machines have no RDMA, or one without devices: `nldev` is a model here, the namespaces are real.
"""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from hooks.attach.kernel import KernelError
from hooks.attach.messages import render_attribute, render_message
from hooks.attach.model import NetnsId, RdmaMode
from hooks.attach.netlink import HostKernel
from hooks.attach.sockets import NETLINK_RDMA, NetlinkSocket
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
    """Where each ibdev is; a socket sees those of the namespace that it was made in."""

    def __init__(self, where: dict[str, NetnsId]) -> None:
        self.where = where

    def socket(self, protocol: int) -> "NetlinkSocket | NldevSocket":
        return NldevSocket(self.where) if protocol == NETLINK_RDMA else NetlinkSocket(protocol)


class NldevSocket:
    def __init__(self, where: dict[str, NetnsId]) -> None:
        self._where = where
        self._netns = id_of_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def exchange(self, request: bytes) -> bytes:
        names = sorted(self._where)
        kind: int = struct.unpack_from("=H", request, 4)[0]
        if kind & 0x3FF == 1:
            seen = [(index, name) for index, name in enumerate(names) if self._where[name] == self._netns]
            devices = (
                render_attribute(1, struct.pack("=I", i)) + render_attribute(2, name.encode() + b"\0") for i, name in seen
            )
            return b"".join(render_message(kind, 2, device) for device in devices) + render_message(3, 2, bytes(4))
        index, netns_fd = struct.unpack_from("=4xI4xI", request, 16)
        assert self._where[names[index]] == self._netns
        found = os.fstat(netns_fd)
        self._where[names[index]] = NetnsId(device=found.st_dev, inode=found.st_ino)
        return render_message(2, 0, bytes(20))


def test_an_rdma_device_goes_in_and_comes_back(host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    nldev = Nldev({"mlx5_1": host.id, "mlx5_10": host.id})
    monkeypatch.setattr("hooks.attach.netlink.NetlinkSocket", nldev.socket)
    for _ in range(2):  # the second time finds it done
        host.run(lambda: _KERNEL.rdma_move_in("mlx5_10", pod.path, pod.id))
        assert nldev.where == {"mlx5_1": host.id, "mlx5_10": pod.id}
    assert host.run(lambda: _KERNEL.rdma_devices(pod.path)) == {"mlx5_10"}
    assert host.run(lambda: _KERNEL.rdma_devices(None)) == {"mlx5_1"}
    for _ in range(2):
        host.run(lambda: _KERNEL.rdma_move_out(pod.path, pod.id, "mlx5_10"))
        assert nldev.where == {"mlx5_1": host.id, "mlx5_10": host.id}
    with pytest.raises(KernelError, match="mlx5_7"):
        host.run(lambda: _KERNEL.rdma_move_in("mlx5_7", pod.path, pod.id))


def without_rdma(protocol: int) -> NetlinkSocket:
    if protocol == NETLINK_RDMA:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
    return NetlinkSocket(protocol)


def test_a_kernel_without_rdma_is_no_fault(host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooks.attach.netlink.NetlinkSocket", without_rdma)
    assert _KERNEL.rdma_mode() is RdmaMode.NONE
    assert host.run(lambda: _KERNEL.rdma_devices(pod.path)) == frozenset()
    with pytest.raises(KernelError, match="EPROTONOSUPPORT"):
        host.run(lambda: _KERNEL.rdma_move_in("mlx5_1", pod.path, pod.id))


def test_the_mode_of_this_machine_is_read() -> None:
    """As its kernel has it: NONE where there is no RDMA, which is so where sockets of its protocol are refused."""
    try:
        NetlinkSocket(NETLINK_RDMA).close()
    except OSError:
        assert _KERNEL.rdma_mode() is RdmaMode.NONE
    else:
        assert _KERNEL.rdma_mode() is not RdmaMode.NONE
