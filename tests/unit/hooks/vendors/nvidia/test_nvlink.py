"""Test NVLinks and module ids by the real pynvml over the fake library: bridged cards, one behind NVSwitches, one without
links."""

from pathlib import Path
from typing import Any

import pytest

from hooks.model.inventory import Gpu, NvLink
from hooks.vendors.nvidia.nvml import read_gpus
from lading.vocabulary import PciAddress
from simnode.build import SimNode
from simnode.nvml import Failure, NvmlState
from tests.conftest import BuildNode

A, B, C, D = (PciAddress(f"0000:{bus}:00.0") for bus in ("1a", "1b", "1c", "1d"))
SWITCHES = {"0000:c5:00.0": 2, "0000:c6:00.0": 1}
BRIDGED = NvLink(count=4, peer=B)
KIND, PEER, STATE = (f"nvmlDeviceGetNvLink{what}" for what in ("RemoteDeviceType", "RemotePciInfo_v2", "State"))


def profile() -> dict[str, Any]:
    links = {A: {B: 4, **SWITCHES}, B: {A: 4}, C: SWITCHES, D: {}}
    cards = [
        {
            "bdf": bdf,
            "gpu": {
                "uuid": f"GPU-0000000{n}-4c61-6469-6e67-000000000000",
                "model": "NVIDIA A100",
                "minor": n,
                "module_id": n,
                "memory_mib": 40960,
                "reserved_mib": 575,
                "nvlinks": peers,
            },
        }
        for n, (bdf, peers) in enumerate(links.items())
    ]
    bridge = {"bus": "0000:15", "socket": 0, "numa": 0, "below": cards}
    return {"name": "links", "driver": {"version": "550.127.05"}, "host_bridges": [bridge]}


def read(node: SimNode, library: Path, **changed: Any) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    NvmlState(profile=node.profile, **changed).write(node.nvml_state)
    _, gpus, problems = read_gpus(node.root, library=library)
    return gpus, problems


def test_links_are_counted_by_peer(build_node: BuildNode, fake_nvml: Path) -> None:
    gpus, problems = read(build_node(profile()), fake_nvml)
    assert [gpu.links for gpu in gpus] == [(BRIDGED, NvLink(count=3)), (NvLink(count=4, peer=A),), (NvLink(count=3),), ()]
    assert [gpu.module_id for gpu in gpus] == [None, 1, 2, 3]  # the first card supports no such question
    assert problems == ()


def test_a_link_that_is_down_does_not_count(build_node: BuildNode, fake_nvml: Path) -> None:
    gpus, _ = read(build_node(profile()), fake_nvml, links_down=((0, 0), (0, 6), (2, 0), (2, 1), (2, 2)))
    assert gpus[0].links == (NvLink(count=3, peer=B), NvLink(count=2))
    assert gpus[2].links == ()


@pytest.mark.parametrize("status", [3, 13])  # NOT_SUPPORTED, FUNCTION_NOT_FOUND
def test_what_a_card_does_not_support_is_absent(build_node: BuildNode, fake_nvml: Path, status: int) -> None:
    failures = [Failure(gpu=0, function=STATE, status=status), Failure(gpu=1, function=KIND, status=status)]
    failures += [Failure(gpu=1, function="nvmlDeviceGetModuleId", status=status)]
    gpus, problems = read(build_node(profile()), fake_nvml, failures=tuple(failures))
    assert (gpus[0].links, gpus[1].links, gpus[1].module_id) == ((), (NvLink(count=4, peer=A),), None)
    assert problems == ()


@pytest.mark.parametrize("function", [STATE, KIND, PEER, "nvmlDeviceGetModuleId"])
def test_another_error_is_a_problem_and_no_ill_health(build_node: BuildNode, fake_nvml: Path, function: str) -> None:
    gpus, (problem,) = read(build_node(profile()), fake_nvml, failures=(Failure(gpu=1, function=function, status=999),))
    assert (gpus[1].links, gpus[1].unhealthy) == ((), "")
    assert gpus[1].uuid in problem
    assert gpus[0].links == (BRIDGED, NvLink(count=3))
