"""Test with the real kernel that a pod's changes of its network device are undone when the device is back on the host.

A veth stands in for a VF. Each test does something as a pod with CAP_NET_ADMIN may, moves the device back, and restores it.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hooks.attach.kernel import Kernel, KernelError
from hooks.model.attachment import KeptSetting
from lading.vocabulary import PciAddress
from tests.fakes import bpf
from tests.fakes.namespaces import Netns

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("needs_namespaces")]

_VF = PciAddress("0000:18:00.2")


@pytest.fixture
def host() -> Iterator[Netns]:
    with Netns() as host:
        host.ip("link add vf0 numtxqueues 4 numrxqueues 4 type veth peer name peer0")
        host.ip("link set peer0 up")
        yield host


def read(host: Netns, kernel: Kernel) -> dict[str, str]:
    return dict(host.run(lambda: kernel.read_kept(_VF, "vf0")))


def after_pod(host: Netns, pod: Netns, kernel: Kernel, do: Callable[[], object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (how the device comes back, how it is once it was restored)."""
    before = host.run(lambda: kernel.read_kept(_VF, "vf0"))
    host.run(lambda: kernel.move_in("vf0", pod.path, pod.id, "rdma0"))
    pod.ip("link set rdma0 up")
    pod.run(do)
    host.run(lambda: kernel.move_out(pod.path, pod.id, "rdma0", "vf0"))
    left = read(host, kernel)
    host.run(lambda: kernel.restore_kept(_VF, "vf0", before))
    after = read(host, kernel)
    assert after == dict(before)
    return left, after


@pytest.mark.parametrize(
    ("words", "name", "left"),
    [
        ("promisc on", "flags", "promisc multicast"),
        ("allmulticast on", "flags", "allmulti multicast"),
        ("arp off", "flags", "noarp multicast"),
        ("multicast off", "flags", ""),
        ("txqueuelen 7", "tx-queue-length", "7"),
        ("group 9", "group", "9"),
        ("gso_max_size 30000", "gso-max-octets", "30000"),
        ("gso_max_segs 100", "gso-max-segments", "100"),
        ("gro_max_size 30000", "gro-max-octets", "30000"),
        ("alias theirs", "alias", b"theirs".hex()),
        ("mode dormant", "link-mode", "1"),
        ("broadcast 02:00:00:00:00:01", "broadcast", "020000000001"),
    ],
)
def test_settings_of_rtnetlink_are_restored(host: Netns, pod: Netns, kernel: Kernel, words: str, name: str, left: str) -> None:
    came_back, _ = after_pod(host, pod, kernel, lambda: pod.ip(f"link set rdma0 {words}"))
    assert came_back[name] == left


def test_features_and_channels_are_restored(host: Netns, pod: Netns, kernel: Kernel) -> None:
    def change() -> None:
        for feature_off in (0x17, 0x19, 0x1F):  # ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO
            ethtool("rdma0", struct.pack("=II", feature_off, 0))
        ethtool("rdma0", struct.pack("=9I", 0x3D, 0, 0, 0, 0, 2, 2, 0, 0))  # ETHTOOL_SCHANNELS: two each way

    before = read(host, kernel)
    came_back, _ = after_pod(host, pod, kernel, change)
    assert came_back["features"] != before["features"]
    assert (came_back["channels-rx"], came_back["channels-tx"]) == ("2", "2")


def ethtool(device: str, command: bytes) -> None:
    """Call ethtool(8)'s ioctl as a process of the pod does."""
    buffer = ctypes.create_string_buffer(command, 256)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8946, struct.pack("@16sP16x", device.encode(), ctypes.addressof(buffer)))


@pytest.mark.parametrize(("mode", "word"), [(bpf.XDP_GENERIC, "generic"), (bpf.XDP_DRIVER, "driver")])
def test_an_xdp_program_is_detached(host: Netns, pod: Netns, kernel: Kernel, mode: int, word: str) -> None:
    came_back, restored = after_pod(host, pod, kernel, lambda: bpf.attach_xdp(index_of(pod), mode))
    assert came_back["xdp"].startswith(f"{word}:")
    assert restored["xdp"] == ""


def test_programs_of_tcx_and_links_are_detached(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Detach programs that exist in Linux 6.6 and newer."""
    links: list[int] = []

    def attach() -> None:
        index = index_of(pod)
        bpf.attach_tcx(index, bpf.TCX_INGRESS)
        links.extend((bpf.link_tcx(index, bpf.TCX_EGRESS), bpf.link_xdp(index)))

    if "tcx-ingress" not in read(host, kernel):
        pytest.skip("this kernel has no TCX")
    came_back, restored = after_pod(host, pod, kernel, attach)
    assert all(came_back[name] for name in ("xdp", "tcx-ingress", "tcx-egress"))
    assert [restored[name] for name in ("xdp", "tcx-ingress", "tcx-egress")] == ["", "", ""]
    for link in links:
        os.close(link)


def test_linux_itself_resets_queueing_disciplines_and_address_lists(host: Netns, pod: Netns, kernel: Kernel) -> None:
    """Check that Linux resets these itself, for which reason Lading does not."""

    def change() -> None:
        pod.ip("maddress add 01:00:5e:00:00:99 dev rdma0")
        pod.tc("qdisc add dev rdma0 root tbf rate 1mbit burst 10k latency 10ms")
        pod.tc("qdisc add dev rdma0 clsact")

    after_pod(host, pod, kernel, change)
    assert all(kind not in host.tc("qdisc show dev vf0") for kind in ("tbf", "clsact"))
    (lists,) = host.show("maddress show dev vf0")
    assert "01:00:5e:00:00:99" not in str(lists)


def test_what_the_host_had_configured_is_restored_and_not_the_default(host: Netns, pod: Netns, kernel: Kernel) -> None:
    host.ip("link set vf0 promisc on txqueuelen 50 alias fabric-a")
    after_pod(host, pod, kernel, lambda: pod.ip("link set rdma0 promisc off txqueuelen 1000 alias theirs"))
    assert {"PROMISC"} <= set(host.links()["vf0"]["flags"])


def test_a_setting_that_cannot_be_restored_is_named(host: Netns, kernel: Kernel) -> None:
    before = read(host, kernel)
    impossible = tuple(KeptSetting(*one) for one in (before | {"channels-rx": "99"}).items())
    with pytest.raises(KernelError) as caught:
        host.run(lambda: kernel.restore_kept(_VF, "vf0", impossible))
    assert all(word in caught.value.message for word in ("vf0", "channels-rx is '4', and was '99'", "EINVAL", "unbind"))
    assert read(host, kernel) == before


def test_settings_of_queues_are_restored(tmp_path: Path, host: Netns, kernel: Kernel) -> None:
    queues = tmp_path / "sys/bus/pci/devices" / _VF / "net/vf0/queues"
    for number in range(12):
        (queues / f"rx-{number}").mkdir(parents=True)
        (queues / f"rx-{number}/rps_cpus").write_text(f"{1 << number:x}\n")
    (queues.parent / "threaded").write_text("0\n")
    before = host.run(lambda: kernel.read_kept(_VF, "vf0"))
    assert dict(before)["rps-cpus"].split() == [f"{1 << number:x}" for number in range(12)]
    (queues / "rx-10/rps_cpus").write_text("f\n")
    (queues.parent / "threaded").write_text("1\n")
    host.run(lambda: kernel.restore_kept(_VF, "vf0", before))
    assert host.run(lambda: kernel.read_kept(_VF, "vf0")) == before


def index_of(netns: Netns) -> int:
    return int(netns.links()["rdma0"]["ifindex"])
