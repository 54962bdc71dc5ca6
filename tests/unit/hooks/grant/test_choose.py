from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hooks.grant.choose import choose
from hooks.grant.dirty import CleanCheck, Cleanness, CleanRule, HostProcess
from hooks.model.assignment import ContainerRequest, GpuRequest, GrantedDevices, GrantedGpu, GrantedVf, Refusal, VfRequest
from hooks.model.grant import Holding
from hooks.model.inventory import Inventory, MigInstance, Pf
from lading.devices.identity import MemorySpan
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import GpuUuid, PciAddress, PodUid
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

NODE = inventory(gpus=tuple(gpu(i) for i in range(4)), vfs=tuple(vf(i) for i in range(4)))
MIG_NODE = inventory(gpus=(mig_gpu(0), gpu(1)))
ME, OTHER, THIRD = PodUid("me"), PodUid("other"), PodUid("third")


def ask(
    request: ContainerRequest,
    node: Inventory = NODE,
    *,
    held: Sequence[Holding] = (),
    unmanaged: dict[GpuUuid, str] | None = None,
) -> GrantedDevices | Refusal:
    return choose(request, node, pod=ME, held=held, unmanaged=unmanaged or {})


def gpus(*names: str, **share: int) -> ContainerRequest:
    return ContainerRequest(
        gpus=tuple(GpuRequest(name=name, memory_mib=share.get("mib"), core_percent=share.get("core")) for name in names)
    )


def vfs(*names: str) -> ContainerRequest:
    return ContainerRequest(vfs=tuple(VfRequest(name=name) for name in names))


def whole(*indices: int) -> GrantedDevices:
    return GrantedDevices(gpus=tuple(GrantedGpu(uuid=uuid(i)) for i in indices))


def share(index: int, mib: int | None = None, core: int | None = None, *, pod_wide: bool = False) -> GrantedDevices:
    return GrantedDevices(gpus=(GrantedGpu(uuid=uuid(index), memory_mib=mib, core_percent=core, pod_wide=pod_wide),))


def bdf(number: int) -> PciAddress:
    return vf(number).bdf


def holding(pod: PodUid, devices: GrantedDevices, container: str = "c") -> Holding:
    return Holding(pod=pod, pod_name=f"ns/{pod}", container=container, devices=devices)


def reason(result: GrantedDevices | Refusal, *named: str) -> Reason:
    assert isinstance(result, Refusal), result
    for name in named:
        assert name in result.message
    return result.reason


def test_each_name_of_a_card_is_the_same_card() -> None:
    card = NODE.gpus[2]
    for name in ("2", card.uuid, card.bdf):
        assert ask(gpus(name)) == whole(2)


def test_devices_are_in_the_order_asked() -> None:
    assert ask(gpus("3", "0", "1")) == whole(3, 0, 1)


def test_nothing_asked_is_nothing_given() -> None:
    assert ask(ContainerRequest()) == GrantedDevices()


def test_unknown_cards_name_what_the_node_has() -> None:
    for name, known in (("4", "3"), (uuid(5), uuid(3)), ("0000:99:00.0", NODE.gpus[3].bdf), (mig_uuid(0), "none")):
        assert reason(ask(gpus("0", name)), name, known) == Reason.DEVICE_UNKNOWN
    assert reason(ask(gpus("0"), inventory())) == Reason.DEVICE_UNKNOWN


def test_a_minor_is_no_index() -> None:
    assert reason(ask(gpus("7"))) == Reason.DEVICE_UNKNOWN  # GPU 0 has minor 7


def test_central_saw_the_card_somewhere_else() -> None:
    at = GpuRequest(name=uuid(1), bdf=NODE.gpus[1].bdf)
    assert ask(ContainerRequest(gpus=(at,))) == whole(1)
    moved = replace(at, bdf=NODE.gpus[2].bdf)
    assert reason(ask(ContainerRequest(gpus=(moved,))), NODE.gpus[2].bdf) == Reason.DEVICE_UNKNOWN


def test_two_names_of_one_card() -> None:
    assert reason(ask(gpus("0", uuid(0)))) == Reason.ANNOTATION_MALFORMED


def test_an_unhealthy_card_says_why() -> None:
    node = inventory(gpus=(gpu(0), gpu(1, unhealthy="Xid 79")))
    assert reason(ask(gpus("0", "1"), node), "Xid 79") == Reason.DEVICE_UNHEALTHY


def test_all_is_every_healthy_card_or_none() -> None:
    node = inventory(gpus=(gpu(0), gpu(1, unhealthy="Xid 79"), gpu(2)))
    assert ask(gpus("all"), node) == whole(0, 2)
    assert reason(ask(gpus("all"), node, held=[holding(OTHER, whole(2))]), "ns/other") == Reason.DEVICE_HELD
    assert reason(ask(gpus("all"), inventory(gpus=(gpu(0, unhealthy="x"),)))) == Reason.DEVICE_UNKNOWN
    assert reason(ask(gpus("all"), inventory())) == Reason.DEVICE_UNKNOWN


@pytest.mark.parametrize("devices", [whole(1), share(1, 100), share(1, core=1), share(1, 100, pod_wide=True)])
def test_a_whole_card_is_given_only_where_no_other_pod_is_on_it(devices: GrantedDevices) -> None:
    assert reason(ask(gpus("1"), held=[holding(OTHER, devices)]), "ns/other", uuid(1)) == Reason.DEVICE_HELD
    assert ask(gpus("2"), held=[holding(OTHER, devices)]) == whole(2)
    assert ask(gpus("1"), held=[holding(ME, devices)]) == whole(1)


def test_a_share_of_a_card_that_another_pod_has_whole() -> None:
    assert reason(ask(gpus("1", mib=1), held=[holding(OTHER, whole(1))])) == Reason.DEVICE_HELD
    assert ask(gpus("1", mib=1), held=[holding(ME, whole(1))]) == share(1, 1)


def test_one_bad_entry_refuses_all() -> None:
    assert reason(ask(gpus("0", "1", "9"))) == Reason.DEVICE_UNKNOWN
    both = ContainerRequest(gpus=(GpuRequest(name="0"),), vfs=(VfRequest(name="mlx5_99"),))
    assert reason(ask(both), "mlx5_99") == Reason.DEVICE_UNKNOWN


def test_shares_add_up_to_the_usable_memory() -> None:
    usable = NODE.gpus[0].usable_mib
    held = [holding(OTHER, share(0, 40000)), holding(THIRD, share(0, 40000))]
    assert ask(gpus("0", mib=usable - 80000), held=held) == share(0, usable - 80000)
    refused = ask(gpus("0", mib=usable - 80000 + 1), held=held)
    assert reason(refused, "ns/other/c", "ns/third/c", "1000") == Reason.CAPACITY_EXCEEDED
    assert reason(ask(gpus("0", mib=usable + 1))) == Reason.CAPACITY_EXCEEDED
    assert isinstance(ask(gpus("1", mib=usable), held=held), GrantedDevices)


def test_shares_add_up_to_a_hundred_percent() -> None:
    held = [holding(OTHER, share(0, 100, 60)), holding(THIRD, share(0, 100))]
    assert ask(gpus("0", core=40), held=held) == share(0, core=40)
    assert reason(ask(gpus("0", core=41), held=held)) == Reason.CAPACITY_EXCEEDED
    assert isinstance(ask(gpus("0", mib=5), held=held), GrantedDevices)


def test_shares_of_one_pods_containers_are_each_counted() -> None:
    held = [holding(ME, share(0, 40000), "a"), holding(ME, share(0, 40000), "b")]
    assert reason(ask(gpus("0", mib=40000), held=held)) == Reason.CAPACITY_EXCEEDED
    assert isinstance(ask(gpus("0", mib=1000), held=held), GrantedDevices)


def test_a_share_of_the_whole_pod_is_counted_once() -> None:
    of_pod = ContainerRequest(gpus=(GpuRequest(name="0", memory_mib=40000, pod_wide=True),))
    held = [holding(ME, share(0, 40000, pod_wide=True), name) for name in "abc"]
    assert ask(of_pod, held=held) == share(0, 40000, pod_wide=True)
    assert reason(ask(gpus("0", mib=41001), held=held)) == Reason.CAPACITY_EXCEEDED
    theirs = [replace(one, pod=OTHER) for one in held]
    assert ask(of_pod, held=theirs) == share(0, 40000, pod_wide=True)
    assert reason(ask(of_pod, held=[*theirs, holding(THIRD, share(0, 40000, pod_wide=True))])) == Reason.CAPACITY_EXCEEDED


def at_once(
    index: int, mib: int, pod_mib: int | None = None, core: int | None = None, pod_core: int | None = None
) -> GrantedDevices:
    """Return a share of a pod whose containers take turns."""
    card = GrantedGpu(uuid=uuid(index), memory_mib=mib, core_percent=core, pod_memory_mib=pod_mib, pod_core_percent=pod_core)
    return GrantedDevices(gpus=(card,))


def test_containers_that_take_turns_count_once() -> None:
    turn = ContainerRequest(gpus=(GpuRequest(name="0", memory_mib=50000, pod_memory_mib=60000),))
    held = [holding(ME, at_once(0, 60000, 60000), "init"), holding(OTHER, share(0, 21000), "c")]
    assert ask(turn, held=held) == at_once(0, 50000, 60000)
    full = [*held, holding(ME, at_once(0, 50000, 60000), "c")]
    assert reason(ask(gpus("0", mib=1), held=full), "81000Mi") == Reason.CAPACITY_EXCEEDED
    assert reason(ask(turn, held=[*held, holding(THIRD, share(0, 1))]), "60000Mi") == Reason.CAPACITY_EXCEEDED
    assert isinstance(ask(gpus("1", mib=81000), held=full), GrantedDevices)


def test_what_a_pod_takes_counts_from_its_first_container_on() -> None:
    first = ContainerRequest(gpus=(GpuRequest(name="0", memory_mib=1, pod_memory_mib=60000),))
    assert isinstance(ask(first, held=[holding(OTHER, share(0, 21000))]), GrantedDevices)
    assert reason(ask(first, held=[holding(OTHER, share(0, 21001))])) == Reason.CAPACITY_EXCEEDED


def test_two_pods_whose_containers_take_turns_add_up() -> None:
    held = [holding(pod, at_once(0, 30000, 40000), name) for pod in (OTHER, THIRD) for name in "ab"]
    assert ask(gpus("0", mib=1000), held=held) == share(0, 1000)
    assert reason(ask(gpus("0", mib=1001), held=held)) == Reason.CAPACITY_EXCEEDED


def test_memory_and_compute_take_turns_each_on_its_own() -> None:
    held = [holding(OTHER, at_once(0, 1000, None, 60, 70), "a"), holding(OTHER, at_once(0, 1000, None, 50, 70), "b")]
    assert ask(gpus("0", mib=79000, core=30), held=held) == share(0, 79000, 30)
    assert reason(ask(gpus("0", core=31), held=held), "70%") == Reason.CAPACITY_EXCEEDED
    assert reason(ask(gpus("0", mib=79001), held=held), "2000Mi") == Reason.CAPACITY_EXCEEDED


def test_the_largest_figure_of_a_pod_counts_beside_its_other_shares() -> None:
    """Check a pod with several figures: an assignment has one figure for a card, and a pod with two figures, or with none for
    some shares, gets no more."""
    for largest in "abcdefgh":
        figures = [holding(OTHER, at_once(0, 1, 40000 if name == largest else 30000), name) for name in "abcdefgh"]
        full = [*figures, holding(OTHER, share(0, 41000), "without")]
        assert reason(ask(gpus("0", mib=1), held=full)) == Reason.CAPACITY_EXCEEDED


def test_mig_instances_are_held_one_by_one() -> None:
    first = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), mig_uuid=mig_uuid(0)),))
    second = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), mig_uuid=mig_uuid(1)),))
    assert ask(gpus(mig_uuid(0)), MIG_NODE) == first
    assert ask(gpus(mig_uuid(1)), MIG_NODE, held=[holding(OTHER, first)]) == second
    assert reason(ask(gpus(mig_uuid(0)), MIG_NODE, held=[holding(OTHER, first)])) == Reason.DEVICE_HELD
    assert ask(gpus(mig_uuid(0)), MIG_NODE, held=[holding(ME, first)]) == first
    assert ask(gpus(mig_uuid(0), mig_uuid(1)), MIG_NODE) == GrantedDevices(gpus=first.gpus + second.gpus)


def test_of_positions_that_take_the_same_memory_one_is_held() -> None:
    spans = {"1g@0": MemorySpan(0, 1), "1g@1": MemorySpan(1, 1), "2g@0": MemorySpan(0, 2)}
    names = {name: f"MIG-{uuid(0)}/{name}" for name in spans}
    positions = tuple(MigInstance(uuid=names[name], memory_mib=1000, span=span) for name, span in spans.items())
    node = inventory(gpus=(replace(gpu(0), mig=positions, mig_enabled=True),))
    small = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), mig_uuid=names["1g@0"]),))
    assert ask(gpus(names["1g@0"]), node) == small
    assert isinstance(ask(gpus(names["1g@1"]), node, held=[holding(OTHER, small)]), GrantedDevices)
    for pod in (ME, OTHER):  # it is one card also for one pod
        refused = ask(gpus(names["2g@0"]), node, held=[holding(pod, small, "another")])
        assert reason(refused, names["1g@0"], "the same memory") == Reason.DEVICE_HELD
    both = ask(gpus(names["2g@0"], names["1g@1"]), node)
    assert reason(both, names["2g@0"], names["1g@1"]) == Reason.ANNOTATION_MALFORMED


def test_a_mig_instance_of_a_card_that_was_given_before_it_was_cut() -> None:
    for devices in (whole(0), share(0, 100)):
        assert reason(ask(gpus(mig_uuid(0)), MIG_NODE, held=[holding(OTHER, devices)])) == Reason.DEVICE_HELD


def test_a_card_whose_mig_instance_a_pod_still_holds() -> None:
    instance = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), mig_uuid=mig_uuid(0)),))
    for request in (gpus("0"), gpus("0", mib=1)):
        assert reason(ask(request, held=[holding(OTHER, instance)]), mig_uuid(0)) == Reason.DEVICE_HELD


def test_a_card_in_mig_mode_is_not_given_whole_nor_shared() -> None:
    assert reason(ask(gpus("0"), MIG_NODE), mig_uuid(0), mig_uuid(1)) == Reason.DEVICE_UNKNOWN
    assert reason(ask(gpus("0", mib=100), MIG_NODE)) == Reason.DEVICE_UNKNOWN
    assert reason(ask(gpus("all"), MIG_NODE)) == Reason.DEVICE_UNKNOWN
    assert ask(gpus("1"), MIG_NODE) == whole(1)


def test_a_card_that_a_pod_uses_without_a_grant() -> None:
    unmanaged = {uuid(1): "pod kube-system/old"}
    for request in (gpus("1"), gpus("1", mib=1), gpus("all")):
        assert reason(ask(request, unmanaged=unmanaged), "kube-system/old") == Reason.DEVICE_HELD
    assert ask(gpus("0"), unmanaged=unmanaged) == whole(0)
    assert reason(ask(gpus(mig_uuid(0)), MIG_NODE, unmanaged={uuid(0): "x"})) == Reason.DEVICE_HELD


def test_vfs_by_each_name() -> None:
    assert ask(vfs(bdf(2), "mlx5_1")) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(2)), GrantedVf(bdf=bdf(0))))
    named = ContainerRequest(vfs=(VfRequest(name=bdf(0), pf=PciAddress("0000:3b:00.0"), ifname="rdma0"),))
    assert ask(named) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(0), ifname="rdma0"),))


def test_ibdevs_are_compared_exactly() -> None:
    node = inventory(vfs=tuple(vf(i) for i in range(9, 12)))  # mlx5_10, …
    assert reason(ask(vfs("mlx5_1"), node)) == Reason.DEVICE_UNKNOWN


def test_unknown_vfs() -> None:
    for name in ("mlx5_9", "0000:3c:00.1", "mlx5_0", "0000:3b:00.0"):
        assert reason(ask(vfs(name)), name, bdf(0)) == Reason.DEVICE_UNKNOWN
    elsewhere = ContainerRequest(vfs=(VfRequest(name=bdf(0), pf=PciAddress("0000:18:00.0")),))
    assert reason(ask(elsewhere), "0000:18:00.0") == Reason.DEVICE_UNKNOWN


def test_a_vf_twice() -> None:
    assert reason(ask(vfs(bdf(0), "mlx5_1"))) == Reason.ANNOTATION_MALFORMED


def test_vfs_that_cannot_be_used() -> None:
    for broken in (vf(0, unhealthy="no carrier"), replace(vf(0), uverbs=None, driver="vfio-pci"), replace(vf(0), uverbs=None)):
        node = inventory(vfs=(broken, vf(1)))
        assert reason(ask(vfs(bdf(0)), node), broken.unhealthy or broken.driver) == Reason.DEVICE_UNHEALTHY
        assert ask(ContainerRequest(any_vfs=1), node) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(1)),))


def test_a_vf_is_held_by_one_pod() -> None:
    held = [holding(OTHER, GrantedDevices(vfs=(GrantedVf(bdf=bdf(0)),)))]
    assert reason(ask(vfs("mlx5_1"), held=held), "ns/other") == Reason.DEVICE_HELD
    mine = [holding(ME, GrantedDevices(vfs=(GrantedVf(bdf=bdf(0)),)))]
    assert ask(vfs("mlx5_1"), held=mine) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(0)),))


def test_vfs_by_number_are_the_lowest_free_ones() -> None:
    held = [holding(OTHER, GrantedDevices(vfs=(GrantedVf(bdf=bdf(0)), GrantedVf(bdf=bdf(2)))))]
    assert ask(ContainerRequest(any_vfs=2), held=held) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(1)), GrantedVf(bdf=bdf(3))))
    assert reason(ask(ContainerRequest(any_vfs=3), held=held)) == Reason.CAPACITY_EXCEEDED
    assert reason(ask(ContainerRequest(any_vfs=1), inventory())) == Reason.CAPACITY_EXCEEDED


def test_lowest_is_by_number_also_where_domains_are_longer() -> None:
    far = replace(vf(0), bdf=PciAddress("10000:01:00.1"))
    near = replace(vf(1), bdf=PciAddress("e000:01:00.1"))
    pf = Pf(bdf=PciAddress("0000:3b:00.0"), driver="mlx5_core", numa=None, vfs=(far, near))
    assert ask(ContainerRequest(any_vfs=1), Inventory(pfs=(pf,))) == GrantedDevices(vfs=(GrantedVf(bdf=near.bdf),))


def test_a_number_without_a_suffix_is_the_pods() -> None:
    of_pod = ContainerRequest(any_vfs=2, any_vfs_pod_wide=True)
    first = ask(of_pod)
    assert first == GrantedDevices(vfs=(GrantedVf(bdf=bdf(0), pod_wide=True), GrantedVf(bdf=bdf(1), pod_wide=True)))
    assert ask(of_pod, held=[holding(ME, first, "init")]) == first
    assert ask(of_pod, held=[holding(OTHER, first)]) == GrantedDevices(
        vfs=(GrantedVf(bdf=bdf(2), pod_wide=True), GrantedVf(bdf=bdf(3), pod_wide=True))
    )


def test_the_pods_vfs_come_before_lower_free_ones() -> None:
    held = [holding(ME, GrantedDevices(vfs=(GrantedVf(bdf=bdf(3), pod_wide=True),)), "init")]
    request = ContainerRequest(any_vfs=1, any_vfs_pod_wide=True)
    assert ask(request, held=held) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(3), pod_wide=True),))


def test_the_pods_vfs_stay_its_own_when_a_container_names_one() -> None:
    pool = GrantedDevices(vfs=(GrantedVf(bdf=bdf(1), pod_wide=True),))
    held = [holding(ME, pool, "init"), holding(ME, GrantedDevices(vfs=(GrantedVf(bdf=bdf(1)),)), "named")]
    assert ask(ContainerRequest(any_vfs=1, any_vfs_pod_wide=True), held=held) == pool


def test_a_number_with_a_suffix_is_that_containers_own() -> None:
    held = [holding(ME, GrantedDevices(vfs=(GrantedVf(bdf=bdf(0), pod_wide=True), GrantedVf(bdf=bdf(1)))), "init")]
    assert ask(ContainerRequest(any_vfs=1), held=held) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(2)),))
    of_pod = ContainerRequest(any_vfs=2, any_vfs_pod_wide=True)
    assert ask(of_pod, held=held) == GrantedDevices(
        vfs=(GrantedVf(bdf=bdf(0), pod_wide=True), GrantedVf(bdf=bdf(2), pod_wide=True))
    )


def test_messages_are_bounded_on_a_large_node() -> None:
    node = inventory(gpus=tuple(mig_gpu(i, 7) for i in range(16)), vfs=tuple(vf(i) for i in range(7)))
    result = ask(gpus("99"), node)
    assert isinstance(result, Refusal)
    assert len(result.message) < 2000


# VFs that are not back from a pod


def not_back(pod: PodUid, *numbers: int) -> Holding:
    return holding(pod, GrantedDevices(vfs=tuple(GrantedVf(bdf=bdf(n)) for n in numbers)), container="")


def test_a_vf_that_is_not_back_is_its_pods() -> None:
    assert reason(ask(vfs(bdf(0)), held=[not_back(OTHER, 0)]), "ns/other", bdf(0)) == Reason.DEVICE_HELD
    assert ask(vfs(bdf(0)), held=[not_back(ME, 0)]) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(0)),))


@pytest.mark.parametrize("pod", [ME, OTHER])
def test_nor_is_it_free(pod: PodUid) -> None:
    """Check that the card is not free for its own pod either, because no container of it has the card any more."""
    one = ContainerRequest(any_vfs=1, any_vfs_pod_wide=True)
    assert ask(one, held=[not_back(pod, 0)]) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(1), pod_wide=True),))


def test_what_a_container_of_the_pod_has_by_number_is_shared_also_while_it_is_in_the_pod() -> None:
    one = ContainerRequest(any_vfs=1, any_vfs_pod_wide=True)
    has = holding(ME, GrantedDevices(vfs=(GrantedVf(bdf=bdf(1), pod_wide=True),)), "init")
    assert ask(one, held=[has, not_back(ME, 1)]) == GrantedDevices(vfs=(GrantedVf(bdf=bdf(1), pod_wide=True),))


# memory and processes that an earlier user left


PYTHON = HostProcess(42, "python3")
ALL = CleanRule(checks=frozenset(CleanCheck), tolerance_mib=64, tolerated=frozenset({"nvidia-cuda-mps-server"}))


def left(
    request: ContainerRequest | None = None,
    *,
    rule: CleanRule = ALL,
    held: Sequence[Holding] = (),
    processes: Sequence[HostProcess] = (),
    waits: str = "",
    since: int = 0,
    **options: Any,
) -> GrantedDevices | Refusal:
    """Ask for card 0 as it is left; card 1 is in MIG mode, and left like it."""
    node = inventory(gpus=(replace(gpu(0), **options), replace(mig_gpu(1), **options)))
    cleanness = Cleanness(
        rule=rule,
        processes={uuid(number): processes for number in (0, 1)},
        waits={uuid(0): waits} if waits else {},
        since={uuid(0): since} if since else {},
    )
    return choose(request or gpus("0"), node, pod=ME, held=held, unmanaged={}, cleanness=cleanness)


DIRT: dict[CleanCheck, dict[str, Any]] = {
    CleanCheck.PROCESSES: {"processes": [PYTHON]},
    CleanCheck.MEMORY: {"used_mib": 80_000},
    CleanCheck.COMPUTE_MODE: {"compute_mode": "EXCLUSIVE_PROCESS"},
    CleanCheck.ECC: {"uncorrected_errors": 3},
}


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (CleanCheck.PROCESSES, "process 42 (python3)"),
        (CleanCheck.MEMORY, "80000 MiB"),
        (CleanCheck.COMPUTE_MODE, "EXCLUSIVE_PROCESS"),
        (CleanCheck.ECC, "3 uncorrected"),
    ],
)
@pytest.mark.parametrize("request_", [gpus("0"), gpus("0", mib=1024)])
def test_a_card_that_is_not_clean_is_given_neither_whole_nor_as_a_first_share(
    check: CleanCheck, said: str, request_: ContainerRequest
) -> None:
    refusal = left(request_, **DIRT[check])
    assert reason(refusal, said) is Reason.DEVICE_DIRTY
    assert isinstance(refusal, Refusal)
    assert refusal.transient
    without = replace(ALL, checks=ALL.checks - {check})
    assert isinstance(left(request_, rule=without, **DIRT[check]), GrantedDevices)


def test_all_that_is_not_clean_is_reported_and_since_when() -> None:
    refusal = left(processes=[PYTHON], used_mib=80_000, compute_mode="PROHIBITED", uncorrected_errors=3, since=1_700_000_000)
    text = ("process 42 (python3)", "80000 MiB", "tolerates 64", "PROHIBITED", "3 uncorrected", "since 2023-11-14 22:13:20 UTC")
    assert reason(refusal, *text) is Reason.DEVICE_DIRTY


@pytest.mark.parametrize("used_mib", [None, 0, 64])
def test_a_card_with_no_more_in_use_than_is_tolerated_is_given(used_mib: int | None) -> None:
    assert left(used_mib=used_mib, uncorrected_errors=0) == whole(0)


def test_processes_that_the_node_tolerates_leave_a_card_clean() -> None:
    """Check names longer than 15 characters, of which the kernel keeps 15."""
    assert left(processes=[HostProcess(7, "nvidia-cuda-mps")]) == whole(0)
    assert isinstance(left(processes=[HostProcess(7, "nvidia-cuda-mps"), PYTHON]), Refusal)


def test_a_card_that_is_being_handed_over_waits_whatever_is_checked() -> None:
    assert reason(left(rule=CleanRule(), waits="it has not been read"), "not been read") is Reason.DEVICE_DIRTY


def test_instances_and_further_shares_have_neighbours() -> None:
    assert isinstance(left(gpus(mig_uuid(10)), used_mib=80_000), GrantedDevices)
    assert isinstance(
        left(gpus("0", mib=1024), used_mib=80_000, held=[holding(PodUid("other"), share(0, 1), "x")]), GrantedDevices
    )


def test_what_is_in_use_of_a_card_that_the_pod_has_is_its_own() -> None:
    assert left(used_mib=80_000, held=[holding(ME, whole(0), "init")]) == whole(0)


def test_no_more_containers_share_a_card_than_the_node_allows() -> None:
    node = replace(NODE, shares_per_gpu=3)
    held = [holding(PodUid(f"p{i}"), share(0, 1)) for i in range(2)]
    assert ask(gpus("0", mib=1), node, held=held) == share(0, 1)
    held.append(holding(ME, share(0, 1, pod_wide=True), "side"))
    assert reason(ask(gpus("0", mib=1), node, held=held), "3 containers") is Reason.CAPACITY_EXCEEDED
    assert ask(gpus("1", mib=1), node, held=held) == share(1, 1)


# isolations that keep containers to their shares


TOKENS, TRUST = IsolationName.TOKENS, IsolationName.NONE
BOTH = replace(NODE, isolations=(TRUST, TOKENS))


def isolated(*names: str, by: IsolationName | None = TOKENS) -> ContainerRequest:
    return ContainerRequest(gpus=tuple(GpuRequest(name=name, core_percent=5, isolation=by) for name in names))


def shared_by(isolation: IsolationName, index: int = 0) -> GrantedDevices:
    return GrantedDevices(gpus=(GrantedGpu(uuid=uuid(index), core_percent=5, isolation=isolation),))


def test_a_share_gets_the_isolation_that_it_asks_for_or_the_nodes_first() -> None:
    assert ask(isolated("0"), BOTH) == shared_by(TOKENS)
    assert ask(isolated("0", by=None), BOTH) == shared_by(TRUST)
    assert ask(isolated("0", by=None), replace(NODE, isolations=(TOKENS, TRUST))) == shared_by(TOKENS)


def test_a_limit_is_granted_as_it_was_asked_for() -> None:
    request = ContainerRequest(gpus=(GpuRequest(name="0", core_percent=30, core_limit_percent=60),))
    assert ask(request) == GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), core_percent=30, core_limit_percent=60),))


def test_an_isolation_that_the_node_does_not_offer_is_refused() -> None:
    assert reason(ask(isolated("0")), "tokens", "this node offers none") is Reason.ISOLATION_UNAVAILABLE
    assert reason(ask(isolated("0", by=IsolationName.MPS), BOTH), "mps", "none, tokens") is Reason.ISOLATION_UNAVAILABLE


def test_the_shares_of_a_card_have_one_isolation() -> None:
    held = [holding(OTHER, shared_by(TRUST))]
    assert reason(ask(isolated("0"), BOTH, held=held), "isolation none", "ns/other") is Reason.ISOLATION_CONFLICT
    assert ask(isolated("0", by=TRUST), BOTH, held=held) == shared_by(TRUST)
    assert ask(isolated("1"), BOTH, held=held) == shared_by(TOKENS, 1)
    own = [holding(ME, shared_by(TRUST), "side")]
    assert reason(ask(isolated("0"), BOTH, held=own), "isolation none") is Reason.ISOLATION_CONFLICT


def test_the_shares_of_a_container_have_one_isolation() -> None:
    request = ContainerRequest(gpus=(*isolated("0").gpus, *isolated("1", by=TRUST).gpus))
    assert reason(ask(request, BOTH), "none, tokens") is Reason.ISOLATION_CONFLICT
    with_whole = ContainerRequest(gpus=(*isolated("0").gpus, *gpus("1").gpus))
    assert ask(with_whole, BOTH) == GrantedDevices(gpus=(*shared_by(TOKENS).gpus, GrantedGpu(uuid=uuid(1))))


def test_a_mig_instance_has_no_isolation_beside_a_share() -> None:
    request = ContainerRequest(gpus=(*gpus(mig_uuid(1)).gpus, *isolated("1").gpus))
    instance = GrantedGpu(uuid=uuid(0), mig_uuid=mig_uuid(1))
    assert ask(request, replace(MIG_NODE, isolations=BOTH.isolations)) == GrantedDevices(
        gpus=(instance, *shared_by(TOKENS, 1).gpus)
    )


def test_sixteen_containers_take_turns_of_a_card_at_most() -> None:
    node = replace(BOTH, shares_per_gpu=20)
    by_turns = [holding(PodUid(f"p{i}"), shared_by(TOKENS)) for i in range(16)]
    assert ask(isolated("0"), node, held=by_turns[1:]) == shared_by(TOKENS)
    assert reason(ask(isolated("0"), node, held=by_turns), "16 containers", "turns") is Reason.CAPACITY_EXCEEDED
    trusted = [holding(PodUid(f"p{i}"), shared_by(TRUST)) for i in range(16)]
    assert ask(isolated("0", by=TRUST), node, held=trusted) == shared_by(TRUST)
