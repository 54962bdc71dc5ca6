"""Test what NVML says of the processes of a card, as lading-shares reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.errors import HostError
from lading.vocabulary import GpuUuid
from shares.readings import DriverReadings
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState, Running
from tests.conftest import BuildNode

MIB = 1 << 20


@pytest.fixture
def readings(fake_nvml: Path) -> Iterator[DriverReadings]:
    readings = DriverReadings(lambda: fake_nvml)
    yield readings
    readings.read([])


def test_processes_that_use_a_card_by_mps_have_memory_too(build_node: BuildNode, readings: DriverReadings) -> None:
    node = build_node("demo-8gpu")
    first, second = (GpuUuid(gpu.uuid) for _, gpu in node.profile.gpus[:2])
    listed = [Running(10, 518), Running(11, 600, mps=True), Running(12, 30, mps=True), Running(12, 700), Running(13)]
    NvmlState(profile=node.profile, processes={0: listed}).write(node.nvml_state)
    assert readings.read([first, second]) == {first: {10: 518 * MIB, 11: 600 * MIB, 12: 700 * MIB}, second: {}}


def test_a_lost_card_is_an_error_and_the_next_reading_begins_anew(build_node: BuildNode, readings: DriverReadings) -> None:
    node = build_node("demo-8gpu")
    uuid = GpuUuid(node.profile.gpus[0][1].uuid)
    NvmlState(profile=node.profile, failures=(Failure(status=GPU_IS_LOST, gpu=0),)).write(node.nvml_state)
    with pytest.raises(HostError, match="cannot read the memory of processes"):
        readings.read([uuid])
    NvmlState(profile=node.profile, processes={0: [Running(10, 518)]}).write(node.nvml_state)
    assert readings.read([uuid]) == {uuid: {10: 518 * MIB}}
