from dataclasses import replace
from pathlib import Path

from hooks.host.binding import find_rebound, read_binding
from hooks.vendors.nvidia.nvml import read_gpus
from lading.vocabulary import PciAddress
from simnode.build import SimNode
from tests.conftest import BuildNode

BDF = PciAddress("0000:1a:00.0")


def bind_again(node: SimNode, bdf: str) -> None:
    """Bind the driver again as sysfs does it: with another link of the same content."""
    link = node.root / "sys/bus/pci/devices" / bdf / "driver"
    new = link.with_name("new")
    new.symlink_to(link.readlink())
    new.replace(link)


def test_a_card_that_is_bound_again_is_reported_from_one_that_stayed(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    _, gpus, _ = read_gpus(node.root, library=fake_nvml)
    assert find_rebound(node.root, gpus) == ()
    bind_again(node, BDF)
    assert find_rebound(node.root, gpus) == (BDF,)
    assert find_rebound(node.root, read_gpus(node.root, library=fake_nvml)[1]) == ()


def test_a_card_without_its_driver_is_not_the_one_that_was_read(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    _, gpus, _ = read_gpus(node.root, library=fake_nvml)
    (node.root / "sys/bus/pci/devices" / BDF / "driver").unlink()
    assert read_binding(node.root, BDF) is None
    assert find_rebound(node.root, gpus) == (BDF,)


def test_a_card_that_was_never_read_is_not_compared(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    _, gpus, _ = read_gpus(node.root, library=fake_nvml)
    assert find_rebound(node.root, [replace(gpu, binding=None) for gpu in gpus]) == ()
    bind_again(node, BDF)
    assert find_rebound(node.root, [replace(gpu, binding=None) for gpu in gpus]) == ()
