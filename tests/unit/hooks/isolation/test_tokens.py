"""Test what a container with a share by turns gets: the library over the driver's, and the folder of its grant."""

from dataclasses import replace
from pathlib import Path

import pytest

from hooks.host.ldcache import make_hook
from hooks.isolation.library import ShareLibrary
from hooks.isolation.tokens import Tokens
from hooks.model.assignment import GrantedGpu, Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Mount, Sandbox
from hooks.ports import Card, Enforced
from lading.reasons import Reason
from lading.sharegrant import SharedGpu
from tests.unit.hooks.inventories import gpu, mig_gpu, mig_uuid, node, uuid

SANDBOX = Sandbox(id="s1", uid="pod-1", namespace="ml", name="p")
TOKENS = Tokens(library=ShareLibrary(libraries="/opt/libraries", shares_dir="/run/shares"))
LIB = "/usr/lib/x86_64-linux-gnu"
GIVEN = Adjustment(
    mounts=(
        Mount(f"{LIB}/libcuda.so.1", f"/driver{LIB}/libcuda.so.580"),
        Mount(f"{LIB}/libcuda.so", f"/driver{LIB}/libcuda.so.580"),
        Mount(f"{LIB}/libnvidia-ml.so.580", f"/driver{LIB}/libnvidia-ml.so.580"),
        Mount(f"{LIB}/libcudadebugger.so.1", f"/driver{LIB}/libcudadebugger.so.1"),
        Mount("/usr/bin/nvidia-smi", "/driver/usr/bin/nvidia-smi"),
    )
)


def card(index: int = 0, **granted: object) -> Card:
    given = replace(GrantedGpu(uuid=uuid(index)), **granted)  # type: ignore[arg-type]
    return Card(granted=given, gpu=gpu(index), node=node(f"/dev/nvidia{index}"), mig=None)


def enforce(*cards: Card, given: Adjustment = GIVEN) -> Enforced:
    result = TOKENS.enforce(cards, SANDBOX, Container(name="train"), given)
    assert isinstance(result, Enforced), result
    return result


def test_each_name_of_the_driver_library_is_replaced_and_the_rest_stays() -> None:
    mounts = enforce(card(memory_mib=1000)).adjustment.mounts
    assert mounts == (
        Mount(f"{LIB}/libcuda.so.1", "/opt/libraries/libcuda.so.1"),
        Mount(f"{LIB}/libcuda.so", "/opt/libraries/libcuda.so.1"),
        Mount(f"{LIB}/libnvidia-ml.so.580", "/opt/libraries/libnvidia-ml.so.1"),
        *GIVEN.mounts[3:],
        Mount("/usr/local/cuda/compat", "/opt/libraries"),
        Mount("/.lading/gpu/real/libcuda.so.1", f"/driver{LIB}/libcuda.so.580"),
        Mount("/.lading/gpu/real/libnvidia-ml.so.1", f"/driver{LIB}/libnvidia-ml.so.580"),
        Mount("/.lading/gpu/share", "/run/shares/pod-1_train"),
    )
    assert all(mount.readonly for mount in mounts)


def test_with_a_hook_no_folder_is_made_and_the_images_libraries_are_hidden() -> None:
    hook = make_hook(Path("/opt/lading-ldcache"), [f"{LIB}/libcuda.so.1"], "580.1", compat=True)
    adjustment = enforce(card(memory_mib=1000), given=replace(GIVEN, hooks=(hook,))).adjustment
    assert not [mount for mount in adjustment.mounts if "compat" in mount.container_path]
    (changed,) = adjustment.hooks
    assert changed.args == ("lading-ldcache", "--driver", "580.1", "--no-compat", f"{LIB}/libcuda.so.1")


@pytest.mark.parametrize("variable", [EnvVar("JULIA_CUDA_USE_COMPAT", "false"), EnvVar("VLLM_ENABLE_CUDA_COMPATIBILITY", "0")])
def test_julia_and_vllm_take_the_libcuda_of_the_container(variable: EnvVar) -> None:
    assert variable in enforce(card(memory_mib=1000)).adjustment.env


def test_the_grant_says_whose_share_it_is_and_how_much() -> None:
    share = enforce(card(memory_mib=1000, core_percent=30, core_limit_percent=60)).share
    assert share is not None
    assert (share.pod, share.container, share.namespace, share.pod_name) == ("pod-1", "train", "ml", "p")
    assert share.gpus == (
        SharedGpu(uuid=uuid(0), memory_mib=1000, total_mib=gpu(0).usable_mib, request_percent=30, limit_percent=60),
    )


def test_where_the_driver_limits_memory_the_grant_says_so() -> None:
    limited = replace(card(memory_mib=1000), gpu=replace(gpu(0), limits_memory=True))
    share = enforce(limited).share
    assert share is not None
    assert share.gpus[0].driver_limits


def test_a_share_without_a_place_for_a_context_is_refused_with_what_it_takes() -> None:
    enforce(replace(card(memory_mib=518), gpu=replace(gpu(0), context_mib=518)))
    enforce(replace(card(memory_mib=100), gpu=replace(gpu(0), context_mib=518, limits_memory=True)))
    small = replace(card(memory_mib=517), gpu=replace(gpu(0), context_mib=518))
    result = TOKENS.enforce([small], SANDBOX, Container(name="train"), GIVEN)
    assert isinstance(result, Refusal)
    assert result.reason is Reason.ISOLATION_UNAVAILABLE
    assert "takes 518 MiB" in result.message


def test_a_card_that_its_driver_does_not_limit_is_refused_where_that_is_asked_for() -> None:
    by_driver = replace(TOKENS, by_driver=True)
    limited = replace(card(memory_mib=1000), gpu=replace(gpu(0), limits_memory=True))
    assert isinstance(by_driver.enforce([limited], SANDBOX, Container(name="train"), GIVEN), Enforced)
    result = by_driver.enforce([limited, card(1, memory_mib=1000)], SANDBOX, Container(name="train"), GIVEN)
    assert isinstance(result, Refusal)
    assert result.reason is Reason.ISOLATION_UNAVAILABLE
    assert uuid(1) in result.message
    assert uuid(0) not in result.message


@pytest.mark.parametrize(
    ("granted", "amounts"),
    [
        ({"memory_mib": 1000}, (1000, 0, 100)),
        ({"core_percent": 30}, (gpu(0).usable_mib, 30, 100)),
        ({"memory_mib": 90_000}, (gpu(0).usable_mib, 0, 100)),  # granted when the driver kept less for itself
    ],
)
def test_what_the_assignment_leaves_open(granted: dict[str, int], amounts: tuple[int, int, int]) -> None:
    share = enforce(card(**granted)).share
    assert share is not None
    (one,) = share.gpus
    assert (one.memory_mib, one.request_percent, one.limit_percent) == amounts


def test_the_containers_of_a_pod_that_share_one_share_have_one_folder() -> None:
    enforced = enforce(card(memory_mib=1000, pod_wide=True))
    assert enforced.share is not None
    assert enforced.share.container == ""
    assert enforced.adjustment.mounts[-1] == Mount("/.lading/gpu/share", "/run/shares/pod-1_")


def test_a_whole_card_beside_a_share_is_reported_and_not_limited() -> None:
    enforced = enforce(card(0), card(1, memory_mib=1000, core_percent=50))
    assert enforced.share is not None
    assert [one.uuid for one in enforced.share.gpus] == [uuid(1)]
    assert EnvVar("LADING_GPU_MEMORY_MIB", f"{gpu(0).usable_mib},1000") in enforced.adjustment.env


def test_a_mig_instance_beside_a_share_is_not_limited() -> None:
    instance = mig_gpu(1)
    beside = Card(
        granted=GrantedGpu(uuid=uuid(1), mig_uuid=mig_uuid(10)), gpu=instance, node=node("/dev/nvidia1"), mig=instance.mig[0]
    )
    share = enforce(beside, card(0, memory_mib=1000)).share
    assert share is not None
    assert [one.uuid for one in share.gpus] == [uuid(0)]


def test_without_the_drivers_library_there_is_no_share() -> None:
    result = TOKENS.enforce([card(memory_mib=1000)], SANDBOX, Container(name="train"), Adjustment(mounts=GIVEN.mounts[2:]))
    assert isinstance(result, Refusal)
    assert result.reason is Reason.ISOLATION_UNAVAILABLE
