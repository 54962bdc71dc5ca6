"""Test what is read of the driver from /proc."""

from pathlib import Path

import pytest

from hooks.vendors.nvidia.procfs import KernelCard, read_kernel_card, read_kernel_card_addresses, read_majors, read_mig_minors
from lading.devices.identity import pci_order
from lading.vocabulary import PciAddress

BDF = PciAddress("0000:1a:00.0")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_majors_are_of_character_drivers_only(tmp_path: Path) -> None:
    write(
        tmp_path, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n507 nvidia-uvm\n\nBlock devices:\n  7 nvidia-caps\n"
    )
    assert read_majors(tmp_path) == {"mem": 1, "nvidia": 195, "nvidia-uvm": 507}


def test_older_drivers_are_called_nvidia_frontend(tmp_path: Path) -> None:
    write(tmp_path, "proc/devices", "Character devices:\n195 nvidia-frontend\n")
    assert read_majors(tmp_path)["nvidia"] == 195


def test_mig_minors(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia-caps/mig-minors", "config 1\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\nodd line\n")
    assert read_mig_minors(tmp_path) == {"config": 1, "gpu1/gi1/access": 147, "gpu1/gi1/ci0/access": 148}


@pytest.mark.parametrize("uuid", ["GPU-????????-????-????-????-????????????", ""])
def test_card_whose_uuid_was_never_read(tmp_path: Path, uuid: str) -> None:
    write(
        tmp_path,
        f"proc/driver/nvidia/gpus/{BDF}/information",
        f"Model: \t\t Unknown\nGPU UUID: \t {uuid}\nDevice Minor: \t 4\n",
    )
    assert read_kernel_card(tmp_path, BDF) == KernelCard(bdf=BDF, uuid=None, minor=4, model="Unknown")


def test_card_that_vanished(tmp_path: Path) -> None:
    assert read_kernel_card(tmp_path, BDF) == KernelCard(bdf=BDF, uuid=None, minor=None, model="")


def test_addresses_are_in_pci_order(tmp_path: Path) -> None:
    for name in ("10000:01:00.0", "0000:9d:00.0", "0001:01:00.0", "README"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert read_kernel_card_addresses(tmp_path) == ("0000:9d:00.0", "0001:01:00.0", "10000:01:00.0")
    assert pci_order(PciAddress("ffff:01:00.0")) < pci_order(PciAddress("10000:01:00.0"))
