"""Test the compute mode with the real pynvml over the fake library."""

from pathlib import Path

import pytest

from hooks.vendors.nvidia.compute_mode import set_exclusive
from lading.errors import HostError
from lading.vocabulary import GpuUuid
from simnode.nvml import Failure, NvmlState
from tests.conftest import BuildNode


def test_a_cards_mode_is_set_and_set_back(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    state = NvmlState(profile=node.profile)
    state.write(node.nvml_state)
    card = GpuUuid(node.profile.gpus[2][1].uuid)
    set_exclusive(card, True, library=fake_nvml)
    set_exclusive(card, False, library=fake_nvml)
    assert Path(f"{node.nvml_state}.modes").read_text() == f"{card} 3\n{card} 0\n"


@pytest.mark.parametrize("function", ["nvmlDeviceSetComputeMode", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_refuses_is_a_host_error(build_node: BuildNode, fake_nvml: Path, function: str) -> None:
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile, failures=(Failure(gpu=0, function=function, status=4),)).write(node.nvml_state)
    with pytest.raises(HostError):
        set_exclusive(GpuUuid(node.profile.gpus[0][1].uuid), True, library=fake_nvml)


def test_a_card_that_is_deleted_is_a_host_error(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    NvmlState(profile=node.profile).write(node.nvml_state)
    with pytest.raises(HostError):
        set_exclusive(GpuUuid("GPU-00000000-0000-0000-0000-000000000000"), True, library=fake_nvml)
