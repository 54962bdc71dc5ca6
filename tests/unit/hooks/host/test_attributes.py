"""Test that an absent attribute is a value, and a read error is not."""

import os
from pathlib import Path

import pytest

from hooks.host.attributes import (
    read_attribute,
    read_boot_id,
    read_device_number,
    read_int,
    read_link_name,
    read_names,
    read_numa,
    read_path,
    read_socket,
)
from lading.errors import HostError

BDF = "0000:1a:00.0"


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    deleted = tmp_path / "gone"
    assert read_attribute(deleted) is None
    assert read_int(deleted) is None
    assert read_names(deleted) == ()
    assert read_link_name(deleted) == ""
    assert read_device_number(deleted) is None


def test_dangling_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "driver").symlink_to("unbound")
    assert read_link_name(tmp_path / "driver") == ""


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_attribute(tmp_path)


@pytest.mark.parametrize(("text", "numa"), [("-1", None), ("0", 0), ("7", 7), ("", None)])
def test_numa(tmp_path: Path, text: str, numa: int | None) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{text}\n")
    assert read_numa(tmp_path, "0000:18:00.0") == numa
    assert read_numa(tmp_path, "0000:18:00.1") is None


@pytest.mark.parametrize(("text", "number"), [("231:192\n", (231, 192)), ("231", None), ("231:-1", None), (":", None)])
def test_device_number(tmp_path: Path, text: str, number: tuple[int, int] | None) -> None:
    (tmp_path / "dev").write_text(text)
    assert read_device_number(tmp_path / "dev") == number


def write(host_root: Path, content: bytes) -> None:
    path = host_root / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_boot_id_is_read_below_the_host_root(tmp_path: Path) -> None:
    write(tmp_path, b"a1b2c3d4-0000-4000-8000-0123456789ab\n")
    assert read_boot_id(tmp_path) == "a1b2c3d4-0000-4000-8000-0123456789ab"


def test_this_machine_has_one() -> None:
    assert read_boot_id(Path("/")) == read_boot_id(Path("/"))


@pytest.mark.parametrize("content", [b"", b"\n", b"not-an-id", b"\xff" * 36])
def test_what_is_no_boot_id(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, content)
    with pytest.raises(HostError, match="boot_id"):
        read_boot_id(tmp_path)


def test_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="boot_id"):
        read_boot_id(tmp_path)


def link(root: Path, place: str) -> None:
    (root / "sys/devices" / place).mkdir(parents=True)
    folder = root / "sys/bus/pci/devices"
    folder.mkdir(parents=True)
    (folder / BDF).symlink_to(os.path.relpath(root / "sys/devices" / place, folder))


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (f"pci0000:15/{BDF}", ("pci0000:15",)),
        (f"pci0000:15/0000:15:01.0/0000:16:00.0/{BDF}", ("pci0000:15", "0000:15:01.0", "0000:16:00.0")),
        (f"platform/3f0000000.pcie/pci0008:00/0008:00:00.0/{BDF}", ("pci0008:00", "0008:00:00.0")),
        (
            f"pci0000:00/0000:00:0e.0/pci10000:e0/{BDF}",
            ("pci0000:00", "0000:00:0e.0", "pci10000:e0"),
        ),
        (f"virtual/{BDF}", ()),
    ],
)
def test_path_is_from_the_host_bridge_down_without_the_function(tmp_path: Path, place: str, path: tuple[str, ...]) -> None:
    link(tmp_path, place)
    assert read_path(tmp_path, BDF) == path


def test_a_function_that_is_not_there_has_no_path(tmp_path: Path) -> None:
    assert read_path(tmp_path, BDF) == ()
    link(tmp_path, f"pci0000:15/{BDF}")
    (tmp_path / "sys/devices/pci0000:15" / BDF).rmdir()
    assert read_path(tmp_path, BDF) == ()


@pytest.mark.parametrize(
    ("processors", "package", "socket"),
    [("12-23,36-47", "1", 1), ("12", "0", 0), ("", "1", None), ("12", "-1", None), (None, "1", None)],
)
def test_socket_is_that_of_the_numa_nodes_first_processor(
    tmp_path: Path, processors: str | None, package: str, socket: int | None
) -> None:
    system = tmp_path / "sys/devices/system"
    for folder in (system / "node/node3", system / "cpu/cpu12/topology"):
        folder.mkdir(parents=True)
    if processors is not None:
        (system / "node/node3/cpulist").write_text(f"{processors}\n")
    (system / "cpu/cpu12/topology/physical_package_id").write_text(f"{package}\n")
    assert read_socket(tmp_path, 3) == socket
    assert read_socket(tmp_path, None) is None
