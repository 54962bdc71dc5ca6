from dataclasses import replace

import pytest

from hooks.grant.unhealthy import choose_again, find_unhealthy
from hooks.model.assignment import ContainerRequest, GrantedDevices, GrantedGpu, GrantedVf, Refusal, VfRequest
from hooks.model.grant import Holding
from hooks.model.inventory import Inventory, Vf
from lading.reasons import Reason
from lading.vocabulary import PodUid
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

POD = PodUid("pod-1")
NODE = inventory(gpus=(gpu(0), mig_gpu(1)), vfs=tuple(vf(i) for i in range(5)))


def ill(*numbers: int) -> Inventory:
    return replace(inventory(vfs=tuple(vf(i, unhealthy="ill" if i in numbers else "") for i in range(5))), gpus=NODE.gpus)


def holding(*numbers: int, pod: PodUid = POD, container: str = "train", pod_wide: bool = True) -> Holding:
    devices = GrantedDevices(vfs=tuple(GrantedVf(bdf=vf(i).bdf, pod_wide=pod_wide) for i in numbers))
    return Holding(pod=pod, pod_name="default/p", container=container, devices=devices)


def again(
    own: Holding, now: Inventory, *held: Holding, named: tuple[Vf, ...] = (), pod_wide: bool = True
) -> list[int] | Refusal:
    """Return the VFs by number."""
    count = len(own.devices.vfs) - len(named)
    request = ContainerRequest(
        vfs=tuple(VfRequest(name=one.bdf) for one in named), any_vfs=count, any_vfs_pod_wide=pod_wide and count > 0
    )
    chosen = choose_again(own, request, find_unhealthy(own.devices, now), now, held)
    return chosen if isinstance(chosen, Refusal) else [int(one.bdf[-1]) - 1 for one in chosen.vfs]


def reason(answer: list[int] | Refusal) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_what_can_be_used_is_well() -> None:
    gpus = (GrantedGpu(uuid=uuid(0)), GrantedGpu(uuid=uuid(1), mig_uuid=mig_uuid(10)))
    assert find_unhealthy(GrantedDevices(gpus=gpus, vfs=holding(1).devices.vfs), NODE) == {}


@pytest.mark.parametrize(
    ("devices", "now", "named"),
    [
        (GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),)), inventory(gpus=(gpu(0, unhealthy="lost"),)), uuid(0)),
        (GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),)), Inventory(), uuid(0)),
        (GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1), mig_uuid=mig_uuid(19)),)), NODE, mig_uuid(19)),
        (holding(1).devices, ill(1), vf(1).bdf),
        (holding(1).devices, Inventory(), vf(1).bdf),
        (holding(1).devices, inventory(vfs=(replace(vf(1), uverbs=None),)), vf(1).bdf),
    ],
)
def test_what_cannot_is_named_with_the_reason(devices: GrantedDevices, now: Inventory, named: str) -> None:
    result = find_unhealthy(devices, now)
    assert list(result) == [named]
    assert result[named]


def test_another_free_one_takes_its_place() -> None:
    assert again(holding(3, 1, 4), ill(1)) == [3, 0, 4]


def test_what_others_hold_is_not_free() -> None:
    other = holding(0, 2, pod=PodUid("pod-2"))
    assert again(holding(1), ill(1), other) == [3]
    assert again(holding(1), ill(1), holding(0, container="side", pod_wide=False)) == [2]


def test_what_another_container_of_the_pod_has_by_number_is_shared() -> None:
    assert again(holding(1), ill(1), holding(4, container="side")) == [4]
    assert again(holding(1), ill(1), holding(4, container="side"), pod_wide=False) == [0]


def test_its_own_rows_do_not_keep_it_from_what_it_has() -> None:
    """Check a VF that is in the pod by the journal: the pod holds it, and an unhealthy one too, until it is back."""
    rows = (holding(3, container="", pod_wide=False), holding(1, container="", pod_wide=False))
    assert again(holding(3, 1), ill(1), *rows) == [3, 0]


def test_what_was_named_cannot_be_another() -> None:
    assert reason(again(holding(1), ill(1), named=(vf(1),))) is Reason.DEVICE_UNHEALTHY
    assert again(holding(0, 2, pod_wide=False), ill(2), named=(vf(0),)) == [0, 1]
    card = replace(holding(1), devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),), vfs=holding(1).devices.vfs))
    assert reason(again(card, replace(ill(1), gpus=(gpu(0, unhealthy="lost"),)))) is Reason.DEVICE_UNHEALTHY


def test_without_another_the_reason_is_the_illness() -> None:
    other = holding(0, 2, 3, 4, pod=PodUid("pod-2"))
    refusal = again(holding(1), ill(1), other)
    assert reason(refusal) is Reason.DEVICE_UNHEALTHY
    assert isinstance(refusal, Refusal)
    assert vf(1).bdf in refusal.message
