"""Test expected pods, read from a file or counted by their shapes."""

import json
from typing import Any

import msgspec
import pytest

from central.rank.workload import MASS, MOST_KINDS, PodKind, kind_of, parse_workload, workload_of
from central.request.model import CpuMemory, DeviceRequest, Policy, Role, Shape
from tests.fakes.capacities import rdma, request, share, whole

SOME = CpuMemory(4000, 8192)


@pytest.mark.parametrize(
    ("requested", "kind"),
    [
        (request(whole("c", 2), gpu_model="A|B", policy=Policy.SPREAD), PodKind(cpu_memory=SOME, gpus=2, models=("A", "B"))),
        (request(whole("c"), whole("d", 2)), PodKind(cpu_memory=SOME, gpus=3)),
        (request(whole("c", 4, role=Role.INIT), whole("d", 2)), PodKind(cpu_memory=SOME, gpus=4)),
        (request(whole("c", role=Role.SIDECAR), whole("d", 2, role=Role.INIT), whole("e")), PodKind(cpu_memory=SOME, gpus=3)),
        (request(share("c", 100), share("d", 200, 30)), PodKind(cpu_memory=SOME, memory_mib=200, core_percent=30)),
        (request(share("c", None, 30)), PodKind(cpu_memory=SOME, core_percent=30)),
        (request(rdma("c")), PodKind(cpu_memory=SOME)),
        (DeviceRequest(containers=(whole("c", 2),), mig_profile="1g.10gb"), PodKind(cpu_memory=SOME)),
        (DeviceRequest(containers=()), PodKind(cpu_memory=SOME)),
    ],
)
def test_kinds_tell_separate_what_a_node_has_to(requested: DeviceRequest, kind: PodKind) -> None:
    assert kind_of(Shape(request=requested, cpu_memory=SOME)) == kind


def test_masses_are_proportions_whatever_the_order() -> None:
    one, two = PodKind(gpus=1), PodKind(gpus=2)
    workload = workload_of({one: 1.0, two: 3.0})
    assert dict(workload.kinds) == {one: MASS // 4, two: MASS * 3 // 4}
    assert workload_of({two: 300.0, one: 100.0}) == workload
    assert workload_of({}).kinds == ()


def test_the_most_frequent_kinds_are_kept() -> None:
    weights = {PodKind(cpu_memory=CpuMemory(number, 0)): float(number) for number in range(1, 2 * MOST_KINDS + 1)}
    kept = workload_of(weights).kinds
    assert len(kept) == MOST_KINDS
    assert min(kind.cpu_memory.cpu_milli for kind, _ in kept) == MOST_KINDS + 1


def written(*pods: dict[str, Any]) -> bytes:
    return json.dumps({"pods": pods}).encode()


def test_a_file() -> None:
    text = written(
        {"weight": 3, "cpu_milli": 4000, "memory_mib": 8192, "gpu_core_percent": 30},
        {"weight": 0.5, "gpus": 8, "gpu_models": ["B", "A"]},
        {"weight": 2, "gpus": 8, "gpu_models": ["A", "B"]},
        {"weight": 1},
    )
    assert parse_workload(text) == {
        PodKind(cpu_memory=SOME, core_percent=30): 3.0,
        PodKind(gpus=8, models=("A", "B")): 2.5,
        PodKind(): 1.0,
    }


@pytest.mark.parametrize(
    "text",
    [
        *(b"{", b"{}", written(), written({"gpus": 1}), written({"weight": 0, "gpus": 1})),
        *(written({"weight": 1, "gpus": -1}), written({"weight": 1, "gpu": 1})),
        written({"weight": 1, "gpu_core_percent": 101}),
        written({"weight": 1, "gpus": 1, "gpu_core_percent": 50}),
    ],
)
def test_a_malformed_workload_is_an_error(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_workload(text)
