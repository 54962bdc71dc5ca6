"""Test what a pod counts in the resources of quotas."""

import pytest

from central.assignment.model import Part, Taken
from central.quota.amounts import as_text, held, model_key, parse_amounts, render_amounts, requested
from central.request.cpu_memory import CPU, MEMORY
from central.request.model import ContainerRequest, CpuMemory, DeviceRequest, Role, Share
from lading.nodedevices import Gpu, MigInstance
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA, GpuUuid, PciAddress

H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"
MODELS = {H100: 80_000, T4: 15_000}
KEY_H100, KEY_T4 = model_key(H100), model_key(T4)
NOTHING = CpuMemory()


def gpus(count: int = 0, share: Share | None = None, role: Role = Role.APP, vfs: int = 0) -> ContainerRequest:
    return ContainerRequest(name="c", gpus=count, share=share, role=role, vfs=vfs)


def pod(*containers: ContainerRequest, models: tuple[str, ...] = (), profile: str = "") -> DeviceRequest:
    return DeviceRequest(containers=containers, gpu_models=models, mig_profile=profile)


def test_names_of_models_are_names_of_resources() -> None:
    assert KEY_H100 == "gpu.lading.dev/NVIDIA-H100-80GB-HBM3"
    assert model_key("  (?) ") == "gpu.lading.dev/unknown"


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (pod(gpus(2), models=(H100,)), {RESOURCE_GPU: 2000, KEY_H100: 2000}),
        (pod(gpus(2)), {RESOURCE_GPU: 2000, KEY_H100: 2000, KEY_T4: 2000}),  # it may get either
        (pod(gpus(2), models=("absent",)), {RESOURCE_GPU: 2000, "gpu.lading.dev/absent": 2000}),
        (pod(gpus(1, vfs=3), models=(T4,)), {RESOURCE_GPU: 1000, KEY_T4: 1000, RESOURCE_RDMA: 3}),
        (pod(gpus(3, role=Role.INIT), gpus(1), models=(T4,)), {RESOURCE_GPU: 3000, KEY_T4: 3000}),
        (pod(gpus(0, vfs=1)), {RESOURCE_RDMA: 1}),
        # shares: the larger part, the largest that it can become
        (pod(gpus(share=Share(memory_mib=8000)), models=(H100,)), {RESOURCE_GPU: 100, KEY_H100: 100}),
        (pod(gpus(share=Share(memory_mib=8000, core_percent=30)), models=(H100,)), {RESOURCE_GPU: 300, KEY_H100: 300}),
        (pod(gpus(share=Share(memory_mib=8000, core_percent=30))), {RESOURCE_GPU: 533, KEY_H100: 300, KEY_T4: 533}),
        (pod(gpus(share=Share(memory_mib=20_000))), {RESOURCE_GPU: 250, KEY_H100: 250}),  # it has no place on a T4
        (pod(gpus(share=Share(core_percent=25, cards=2)), models=(H100,)), {RESOURCE_GPU: 500, KEY_H100: 500}),
        (pod(gpus(share=Share(memory_mib=1))), {RESOURCE_GPU: 1, KEY_H100: 1, KEY_T4: 1}),  # never nothing
        (pod(gpus(share=Share(memory_mib=90_000))), {RESOURCE_GPU: 1000}),
        # MIG
        (pod(gpus(1), models=(H100,), profile="1g.10gb"), {RESOURCE_GPU: 142, KEY_H100: 142}),
        (pod(gpus(2), models=(H100,), profile="3g.40gb"), {RESOURCE_GPU: 1000, KEY_H100: 1000}),
        (pod(gpus(1), models=(H100,), profile="1g.20gb"), {RESOURCE_GPU: 250, KEY_H100: 250}),
        (pod(gpus(1), models=(H100,), profile="7g.80gb"), {RESOURCE_GPU: 1000, KEY_H100: 1000}),
    ],
)
def test_the_amounts_that_a_waiting_pod_requests(ask: DeviceRequest, expected: dict[str, int]) -> None:
    assert requested(ask, NOTHING, MODELS) == expected


def test_cpu_and_memory_beside() -> None:
    assert requested(pod(gpus(0, vfs=1)), CpuMemory(1500, 2048), {}) == {RESOURCE_RDMA: 1, CPU: 1500, MEMORY: 2048}


def card(uuid: str, model: str, memory_mib: int, mig: tuple[MigInstance, ...] = ()) -> Gpu:
    return Gpu(uuid=GpuUuid(uuid), bdf=PciAddress("0000:01:00.0"), model=model, memory_mib=memory_mib, mig=mig)


def instance(uuid: str, profile: str, memory_mib: int) -> MigInstance:
    return MigInstance(uuid=uuid, gpu_instance=0, compute_instance=0, memory_mib=memory_mib, profile=profile)


CARDS = {
    GpuUuid("big"): card("big", H100, 80_000, (instance("m1", "1g.10gb", 9856), instance("m2", "", 40_000))),
    GpuUuid("small"): card("small", T4, 15_000),
}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"big": Part(whole=True), "small": Part(whole=True)}, {RESOURCE_GPU: 2000, KEY_H100: 1000, KEY_T4: 1000}),
        ({"small": Part(memory_mib=7500, core_percent=30)}, {RESOURCE_GPU: 500, KEY_T4: 500}),
        ({"big": Part(memory_mib=7500, core_percent=30)}, {RESOURCE_GPU: 300, KEY_H100: 300}),
        ({"big": Part(mig=frozenset({"m1"}))}, {RESOURCE_GPU: 142, KEY_H100: 142}),
        ({"big": Part(mig=frozenset({"m1", "m2"}))}, {RESOURCE_GPU: 642, KEY_H100: 642}),
        ({"gone": Part(whole=True)}, {RESOURCE_GPU: 1000}),
        ({"gone": Part(memory_mib=7500, core_percent=30)}, {RESOURCE_GPU: 300}),
    ],
)
def test_the_amounts_that_a_pod_holds(parts: dict[str, Part], expected: dict[str, int]) -> None:
    taken = Taken(gpus={GpuUuid(uuid): part for uuid, part in parts.items()}, vfs=frozenset({PciAddress("0000:03:00.2")}))
    assert held(taken, CpuMemory(500, 0), CARDS) == expected | {RESOURCE_RDMA: 1, CPU: 500}


@pytest.mark.parametrize("profile", ["1g.10gb", "2g.20gb", "3g.40gb", "1g.18gb", "3g.71gb", "1g.6gb"])
def test_instances_that_fill_a_card_are_no_more_than_the_card(profile: str) -> None:
    for card_mib, count in {81_559: 7, 143_771: 7, 24_576: 4}.items():
        slices, gigabytes = (int(part.strip("gb")) for part in profile.split("g.", 1))
        fitting = min(count // slices, card_mib // (gigabytes * 1000))
        if fitting:
            whole = requested(pod(gpus(fitting), models=("m",), profile=profile), NOTHING, {"m": card_mib})
            assert whole[RESOURCE_GPU] <= 1000


def test_amounts_are_written_as_they_are_read() -> None:
    written = {RESOURCE_GPU: "2500m", KEY_H100: "2", RESOURCE_RDMA: "8", CPU: "100500m", MEMORY: "2048Mi"}
    read = parse_amounts(dict(written))
    assert not isinstance(read, str)
    assert render_amounts(read[0]) == written


@pytest.mark.parametrize(
    ("key", "amount", "words"),
    [
        *((RESOURCE_GPU, 12_000, "12 GPUs"), (RESOURCE_GPU, 2500, "2.5 GPUs"), (KEY_T4, 1000, "1 GPU Tesla-T4")),
        *((RESOURCE_RDMA, 3, "3 VFs"), (CPU, 1500, "1.5 cores"), (MEMORY, 2048, "2Gi")),
    ],
)
def test_in_words(key: str, amount: int, words: str) -> None:
    assert as_text(key, amount) == words
