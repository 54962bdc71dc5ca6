"""Test records as /dev/kmsg gives them, one for each read(2), like a pipe in packet mode."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.inventory.read import read_inventory
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from hooks.vendors.nvidia.xid import KernelLog, Xids
from tests.conftest import BuildNode

BDF = "0000:1a:00.0"
OFF_THE_BUS = "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(text: str, *, priority: int = 4) -> bytes:
    return f"{priority},1234,56789,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:{BDF}\n".encode()


def of(*texts: str, priority: int = 4) -> str:
    xids = Xids()
    for text in texts:
        xids.add(record(text, priority=priority))
    return xids.of(BDF)


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158])
def test_a_critical_xid_breaks_its_card_only(xid: int) -> None:
    assert f"Xid {xid}" in of(f"NVRM: Xid (PCI:0000:1a:00): {xid}, something")
    assert not of(f"NVRM: Xid (PCI:0000:1b:00): {xid}, something")


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94, 109])
def test_what_a_program_can_cause_does_not(xid: int) -> None:
    assert not of(f"NVRM: Xid (PCI:0000:1a:00): {xid}, pid=42, name=python3, something")


@pytest.mark.parametrize("written", ["PCI:0000:1A:00", "0000:1a:00", "PCI:0000:1a:00.0"])
def test_a_card_is_known_however_its_address_is_written(written: str) -> None:
    assert of(f"NVRM: Xid ({written}): 79, gone")


def test_what_the_driver_says_that_a_card_needs_counts_until_it_takes_it_back() -> None:
    needs = "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    back = "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert "GPU Reset Required" in of(needs)
    assert not of(needs, back)
    assert not of(OFF_THE_BUS, needs, back)


def test_a_driver_that_was_loaded_again_begins_anew() -> None:
    loaded = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024"
    assert not of(OFF_THE_BUS, loaded)
    assert of(loaded, OFF_THE_BUS)


@pytest.mark.parametrize("priority", [8, 12, 14])
def test_a_line_that_a_process_wrote_is_not_the_kernels(priority: int) -> None:
    assert not of(OFF_THE_BUS, priority=priority)


@pytest.mark.parametrize("text", ["", "NVRM: Xid (PCI:0000:1a:00): , x", "NVRM: Xid : 79", f"said: {OFF_THE_BUS}"])
def test_other_lines_break_nothing(text: str) -> None:
    assert not of(text)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    """Return the writing end of a pipe that is the node's log."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").symlink_to(f"/proc/self/fd/{reading}")
    yield writing
    os.close(writing)
    os.close(reading)


def test_the_log_is_read_on_from_where_it_was(log: int, tmp_path: Path) -> None:
    kernel_log = KernelLog(tmp_path)
    os.write(log, record("usb 1-1: new device"))
    assert not kernel_log.read().of(BDF)
    os.write(log, record(OFF_THE_BUS))
    os.write(log, record("usb 1-1: gone"))
    assert "Xid 79" in kernel_log.read().of(BDF)
    assert "Xid 79" in kernel_log.read().of(BDF)
    kernel_log.close()


def test_a_log_that_cannot_be_read_is_a_problem(
    build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = build_node("workstation")

    def denied(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    kernel_log = KernelLog(node.root)
    monkeypatch.setattr(kernel_log, "read", denied)
    inventory = read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)), kernel_log=kernel_log)])
    assert ([gpu.unhealthy for gpu in inventory.gpus], len(inventory.problems)) == ([""], 1)


def test_a_card_with_a_critical_xid_is_unhealthy(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    kernel_log = KernelLog(node.root)
    kernel_log.read().add(record(OFF_THE_BUS))
    inventory = read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)), kernel_log=kernel_log)])
    assert [gpu.bdf for gpu in inventory.gpus if gpu.unhealthy] == [BDF]
