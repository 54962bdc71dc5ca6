"""Check that the rig of VFs behaves like the kernel: places of devices, sysfs, and devices of a deleted namespace."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simnode import leftovers
from simnode.build import SimNode, build
from simnode.child import replace_text
from simnode.links import list_links, open_socket
from simnode.vf_folder import netns_inode, settle_rdma
from simnode.vf_rig import VfRig, vf_profile
from tests.fakes.needs import need
from tests.node.site import eventually

pytestmark = pytest.mark.node


@pytest.fixture
def node(short_folder: Path) -> SimNode:
    need(os.geteuid() == 0, "root")
    return build(vf_profile(pfs=2, vfs=2), short_folder / "node")


@pytest.fixture
def rig(node: SimNode, short_folder: Path) -> Iterator[VfRig]:
    with VfRig(node, short_folder / "rig") as rig:
        yield rig
    assert leftovers.mounts_below(short_folder) == []


@pytest.fixture
def pod(short_folder: Path) -> Iterator[Path]:
    netns = short_folder / "pod"
    netns.touch()
    subprocess.run(["unshare", f"--net={netns}", "true"], check=True)
    yield netns
    leftovers.unmount_below(netns)


def ip(netns: Path, *arguments: str) -> None:
    subprocess.run(["nsenter", f"--net={netns}", "ip", *arguments], check=True)


def move(rig: VfRig, vf: str, pod: Path, name: str) -> None:
    """Move a VF as another program would: iproute2 takes a process that is in the new namespace."""
    with subprocess.Popen(["nsenter", f"--net={pod}", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=-1) as there:
        assert there.stdout is not None
        there.stdout.readline()
        ip(rig.folder.netns, "link", "set", rig.stand_ins[vf].name, "netns", str(there.pid), "name", name)
        there.communicate()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def shown(node: SimNode, bdf: str) -> list[str]:
    return names(node.pci(bdf) / "net")


def soon(is_so: Callable[[], bool]) -> None:
    def check() -> None:
        assert is_so()

    eventually(check)


def test_every_function_has_a_link_and_nothing_of_the_machine_is_there(rig: VfRig, node: SimNode) -> None:
    assert len(rig.vfs) == 4
    assert rig.lost_home() == {}
    assert rig.links_left() == 0
    with open_socket(rig.folder.netns) as sock:
        links = {link.name: link for link in list_links(sock) if link.alias in rig.stand_ins}
    assert {link.alias: [link.name] for link in links.values()} == {bdf: shown(node, bdf) for bdf in rig.stand_ins}
    for link in links.values():
        assert (node.pci(link.alias) / "net" / link.name / "ifindex").read_text() == f"{link.index}\n"


def test_sysfs_does_not_show_a_device_that_is_away(rig: VfRig, node: SimNode, pod: Path) -> None:
    vf = rig.vfs[1]
    move(rig, vf, pod, "rdma0")
    soon(lambda: shown(node, vf) == [])
    away = rig.where()[vf]
    assert (away.name, away.mac, away.at_home) == ("rdma0", rig.stand_ins[vf].mac, False)
    assert list(rig.lost_home()) == [vf]


def test_a_rename_shows(rig: VfRig, node: SimNode) -> None:
    vf = rig.vfs[0]
    ip(rig.folder.netns, "link", "set", rig.stand_ins[vf].name, "name", "other")
    soon(lambda: shown(node, vf) == ["other"])
    assert list(rig.lost_home()) == [vf]


def test_a_dead_namespace_gives_back_what_it_had(rig: VfRig, node: SimNode, pod: Path) -> None:
    one, other, third, _ = rig.vfs
    move(rig, one, pod, "rdma0")
    move(rig, other, pod, "rdma1")
    ip(pod, "link", "set", "rdma0", "mtu", "1400", "address", "02:00:00:00:00:99", "up")
    ip(rig.folder.netns, "link", "set", rig.stand_ins[third].name, "name", "rdma1")
    soon(lambda: rig.where()[one].up)
    leftovers.unmount_below(pod)
    rig.await_returned(one, other)
    back = rig.where()[one]
    assert (back.name, back.mac, back.mtu, back.up) == ("rdma0", "02:00:00:00:00:99", 1400, False)
    assert rig.where()[other].name.startswith("dev")
    assert shown(node, other) == [rig.where()[other].name]
    rig.reboot()
    assert rig.lost_home() == {}
    assert rig.links_left() == 0


def test_an_ibdev_of_another_namespace_is_not_in_sysfs(node: SimNode, short_folder: Path, pod: Path) -> None:
    with VfRig(node, short_folder / "rig", exclusive=True) as rig:
        known = node.root / "sys/class/infiniband"
        everything, function = names(known), node.pci(rig.vfs[0])
        (ibdev,) = names(function / "infiniband")
        with rig.folder.locked():
            replace_text(rig.folder.rdma, json.dumps({ibdev: {"netns": str(pod), "inode": netns_inode(str(pod))}}))
            settle_rdma(node.root, rig.folder)
        assert not (function / "infiniband").exists()
        assert names(known) == [name for name in everything if name != ibdev]
        assert len(names(node.root / "sys/class/infiniband_verbs")) == len(everything) - 1
        leftovers.unmount_below(pod)
        soon((known / ibdev / "node_guid").exists)
        assert names(known) == everything
