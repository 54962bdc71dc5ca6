"""Test what a container with a share by HAMi-core gets."""

from dataclasses import replace

import pytest

from hooks.isolation.hami_core import HamiCore
from hooks.model.assignment import GrantedGpu, Refusal
from hooks.model.container import Adjustment, Container, Device, Mount, Sandbox
from hooks.ports import Card, Enforced
from lading.reasons import Reason
from tests.unit.hooks.inventories import gpu, node, uuid

HAMI = HamiCore(library="/opt/hami/libvgpu.so", folder="/dev/shm/hami")
GIVEN = Adjustment(devices=(Device("/dev/nvidia0"),))


def card(index: int = 0, **granted: object) -> Card:
    given = replace(GrantedGpu(uuid=uuid(index)), **granted)  # type: ignore[arg-type]
    return Card(granted=given, gpu=gpu(index), node=node(f"/dev/nvidia{index}"), mig=None)


def enforce(*cards: Card) -> Enforced | Refusal:
    return HAMI.enforce(cards, Sandbox(uid="pod-1"), Container(name="train"), GIVEN)


def limits(*cards: Card) -> dict[str, str]:
    enforced = enforce(*cards)
    assert isinstance(enforced, Enforced), enforced
    return {env.name: env.value for env in enforced.adjustment.env if env.name.startswith("CUDA_DEVICE_MEMORY_LIMIT")}


def test_the_library_is_loaded_first_and_writes_to_a_folder_of_the_container() -> None:
    enforced = enforce(card(memory_mib=1000, core_percent=30))
    assert isinstance(enforced, Enforced)
    assert enforced.share is None
    assert enforced.adjustment.devices == GIVEN.devices
    assert enforced.adjustment.mounts == (
        Mount("/usr/local/vgpu/libvgpu.so", "/opt/hami/libvgpu.so"),
        Mount("/etc/ld.so.preload", "/dev/shm/hami/ld.so.preload"),
        Mount("/run/lading/hami", "/dev/shm/hami/pod-1_train", readonly=False),
        Mount("/tmp/vgpulock", "/dev/shm/hami/pod-1_train", readonly=False),
    )
    assert {env.name: env.value for env in enforced.adjustment.env} == {
        "LADING_GPU_MEMORY_MIB": "1000",
        "LADING_GPU_CORE_PERCENT": "30",
        "LADING_GPU_TOTAL_MEMORY_MIB": str(gpu(0).usable_mib),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/run/lading/hami/region",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
        "CUDA_REDIRECT": "",
    }


def test_each_card_has_its_limit_by_its_number_in_the_container() -> None:
    limit = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m", "CUDA_DEVICE_MEMORY_LIMIT_1": "1000m"}
    assert limits(card(0, memory_mib=1000), card(1, memory_mib=1000)) == limit


@pytest.mark.parametrize("granted", [{"core_percent": 30}, {"memory_mib": 10**6}])
def test_a_limit_is_the_memory_of_the_card_at_most(granted: dict[str, int]) -> None:
    assert limits(card(**granted)) == {"CUDA_DEVICE_MEMORY_LIMIT_0": f"{gpu(0).usable_mib}m"}


@pytest.mark.parametrize(
    ("cards", "word"),
    [
        ((card(0, memory_mib=1000), card(1, memory_mib=2000)), "1000 MiB and 2000 MiB"),
        ((card(0, memory_mib=1000), card(1)), f"1000 MiB and {gpu(1).usable_mib} MiB"),
        ((card(0, memory_mib=1000, pod_wide=True),), "lading.dev/gpus.train"),
    ],
)
def test_what_the_library_cannot_keep_separate_is_refused(cards: tuple[Card, ...], word: str) -> None:
    refusal = enforce(*cards)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.ISOLATION_UNAVAILABLE
    assert word in refusal.message
