"""Test case 1: an assignment with a host path, or another device's address, is refused, also if its other entries are valid.

Naive version that fails: a parser that skips unreadable entries and assigns the others.
"""

import json
from uuid import uuid4

import pytest

from lading.reasons import Reason
from tests.hostile.front import Front, devices, host_paths

HOST_PATHS = (
    *("/", "//", "/dev/sda", "/dev/../etc/shadow", "/proc/1/root", "/proc/self/root/dev/sda", "/dev/nvidia0"),
    *("..", "../nvidia0", "./0", "0/../1", "dev/sda", "file:///dev/sda", "~root", "%2fdev%2fsda", "\\\\?\\dev", "8:0", "b 8 0"),
    *(
        "\0/dev/sda",
        "0\0/dev/sda",
        "\N{FULLWIDTH SOLIDUS}dev\N{FULLWIDTH SOLIDUS}sda",
        "*",
        "/dev/disk/by-path/pci-0000:05:00.0",
    ),
)
DISK = "0000:05:00.0"
ANOTHER_PF = "0000:19:00.0"
OTHERS = (DISK, "0000:05:00.1", "ffff:ff:1f.7", ANOTHER_PF)


def add_disk(front: Front) -> None:
    """Add the PCI function of a block device to the node."""
    disk = front.lading.node.root / "sys/bus/pci/devices" / DISK
    if not disk.exists():
        disk.mkdir()
        (disk / "class").write_text("0x010802\n")


@pytest.mark.parametrize("kind", ["gpus", "vfs"])
def test_named_by_hand(by_hand: Front, kind: str) -> None:
    add_disk(by_hand)
    good = by_hand.vfs[0] if kind == "vfs" else "0"
    for bad in HOST_PATHS:
        for value in (bad, f"{good},{bad}"):
            assert by_hand.refused({f"lading.dev/{kind}": value}).reason is Reason.ANNOTATION_MALFORMED, value
    for bad in OTHERS:
        for value in (bad, f"{good},{bad}", f"{bad},{good}"):
            assert by_hand.refused({f"lading.dev/{kind}.main": value}).reason is Reason.DEVICE_UNKNOWN, value


def test_a_bad_entry_of_one_kind_refuses_the_other_kind_too(by_hand: Front) -> None:
    for annotations in (
        {"lading.dev/gpus": "0", "lading.dev/vfs": "/dev/sda"},
        {"lading.dev/gpus": "/dev/sda", "lading.dev/vfs": "1"},
        {"lading.dev/gpus": "0", "lading.dev/gpus.other": "/dev/sda"},  # a container that does not exist
    ):
        assert by_hand.refused(annotations).reason is Reason.ANNOTATION_MALFORMED
    with by_hand.created({"lading.dev/gpus": "0", "lading.dev/vfs": "1"}) as request:  # without bad entries
        assert by_hand.card(0) in devices(request)
        paths = host_paths(request)
        assert len(paths) > 2  # paths of a card, and of a VF
        root = by_hand.lading.node.root
        assert all(path.startswith((f"{root}/dev/", f"{root}/usr/")) for path in paths)  # device nodes, and the driver's files


@pytest.mark.parametrize("where", ["uuid", "bdf", "vf", "pf", "ifname", "container"])
def test_named_by_central(by_central: Front, where: str) -> None:
    add_disk(by_central)
    for bad in (*HOST_PATHS, *OTHERS):
        uid = str(uuid4())
        gpus = [{"uuid": by_central.gpu(0)}, {"uuid": by_central.gpu(1)}]
        vfs = [{"bdf": by_central.vfs[0]}, {"bdf": by_central.vfs[1]}]
        containers: dict[str, object] = {"main": {"gpus": gpus, "vfs": vfs}}
        match where:
            case "uuid" | "bdf":
                gpus[1][where] = bad
            case "vf":
                vfs[1]["bdf"] = bad
            case "pf" | "ifname":
                vfs[1][where] = bad
            case _:
                containers[bad] = {}
        text = json.dumps({"v": 1, "pod": uid, "node": "demo", "gen": 1, "containers": containers})
        reason = by_central.refused({"lading.dev/assignment": text}, uid=uid).reason
        assert reason in {Reason.ANNOTATION_MALFORMED, Reason.DEVICE_UNKNOWN}, bad
