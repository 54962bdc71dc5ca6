"""Test the positions of functions on PCI trees that are built here; test_read has those of whole nodes."""

import os
from pathlib import Path

import pytest

from hooks.host.places import read_path, read_socket

BDF = "0000:1a:00.0"


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
        (f"pci0000:00/0000:00:0e.0/pci10000:e0/{BDF}", ("pci0000:00", "0000:00:0e.0", "pci10000:e0")),
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
