from dataclasses import replace

import pytest

from central.assignment.model import Part, PlacedGpu
from central.ledger.model import NodeCapacity
from central.request.model import ContainerRequest, DeviceRequest, Policy, Role, Share
from central.search.demand import Limits
from central.search.fit import fit
from central.search.placement import Missing, NoFit, Placement
from tests.fakes.capacities import capacity, card, eight_gpus, gpu_bdf, gpu_uuid, held, rdma, request, share, vf, vf_bdf, whole


def place(
    where: NodeCapacity, pod: DeviceRequest, *, policy: Policy = Policy.BINPACK, limits: Limits | None = None
) -> Placement:
    result = fit(where, pod, policy=policy, limits=limits or Limits())
    assert isinstance(result, Placement), result
    return result


def missing(where: NodeCapacity, pod: DeviceRequest) -> Missing:
    result = fit(where, pod, policy=Policy.BINPACK)
    assert isinstance(result, NoFit), result
    return result.missing


def test_whole_cards_and_vfs() -> None:
    result = place(eight_gpus(), request(whole("train", 2, vfs=1)))
    train = result.containers["train"]
    assert train.gpus == tuple(PlacedGpu(uuid=gpu_uuid(n), bdf=gpu_bdf(n)) for n in (0, 1))
    assert result.taken.gpus == {gpu_uuid(0): Part(whole=True), gpu_uuid(1): Part(whole=True)}
    assert result.taken.vfs == {vf_bdf(0)}


@pytest.mark.parametrize(
    ("requested", "memory_mib", "core_percent"),
    [(share("a", 8138), 8138, None), (share("a", 8138, 30), 8138, 30), (share("a", core_percent=33), 26973, 33)],
)
def test_a_share_is_placed_with_its_amounts(requested: ContainerRequest, memory_mib: int, core_percent: int | None) -> None:
    [gpu] = place(capacity(card(0, usable_mib=81737)), request(requested)).containers["a"].gpus
    assert (gpu.memory_mib, gpu.core_percent) == (memory_mib, core_percent)
    assert not gpu.whole


def test_a_percentage_is_of_the_card_that_is_chosen() -> None:
    where = capacity(card(0, usable_mib=1001, free_mib=500), card(1, usable_mib=501, free_mib=250))
    [gpu] = place(where, request(share("a", core_percent=50))).containers["a"].gpus
    assert (gpu.uuid, gpu.memory_mib) == (gpu_uuid(1), 250)


def share_by_percent(name: str, memory: int, core: int | None = None, cards: int = 1) -> ContainerRequest:
    return ContainerRequest(name=name, share=Share(memory_percent=memory, core_percent=core, cards=cards))


def test_a_percentage_of_memory_differs_from_that_of_compute() -> None:
    where = capacity(card(0, usable_mib=1000, free_mib=600, free_core=30), card(1, usable_mib=1000, free_mib=400))
    [gpu] = place(where, request(share_by_percent("a", 60, 30))).containers["a"].gpus
    assert (gpu.uuid, gpu.memory_mib, gpu.core_percent) == (gpu_uuid(0), 600, 30)
    [gpu] = place(where, request(share_by_percent("a", 40))).containers["a"].gpus
    assert (gpu.uuid, gpu.memory_mib, gpu.core_percent) == (gpu_uuid(1), 400, None)
    assert missing(where, request(share_by_percent("a", 61))) is Missing.NO_CARD_WITH_ROOM
    assert missing(where, request(share_by_percent("a", 50, cards=2))) is Missing.NO_CARD_WITH_ROOM


def test_all_shares_of_a_pod_may_have_to_be_on_one_card() -> None:
    where = capacity(card(0, free_mib=3000), card(1, free_mib=5000), card(2, free_mib=2500))
    two = request(share("a", 2000), share("b", 2500))
    for pod, cards in ((two, {gpu_uuid(0), gpu_uuid(2)}), (replace(two, same_card=True), {gpu_uuid(1)})):
        placed = place(where, pod).containers
        assert {gpu.uuid for one in placed.values() for gpu in one.gpus} == cards
    large = replace(request(share("a", 3000), share("b", 2500)), same_card=True)
    assert missing(where, large) is Missing.KEPT_OFF


def test_a_percentage_of_next_to_nothing_is_none() -> None:
    [gpu] = place(capacity(card(0, usable_mib=2), card(1)), request(share("a", core_percent=49))).containers["a"].gpus
    assert gpu.uuid == gpu_uuid(1)


def test_gpushares_example_of_three_nodes() -> None:
    """Check a request for 8138 MiB of one card. Each of three nodes has two cards of 16276 MiB: free are 4069 MiB on one card,
    4069 MiB on both cards, or 8138 MiB on one card."""
    pod = request(share("a", 8138))
    fits = []
    for free in [(0, 4069), (4069, 4069), (0, 8138)]:
        cards = (card(n, usable_mib=16276, free_mib=mib) for n, mib in enumerate(free))
        fits.append(isinstance(fit(capacity(*cards), pod, policy=Policy.BINPACK), Placement))
    assert fits == [False, False, True]


def test_the_shares_of_a_pod_add_up() -> None:
    where = capacity(card(0, usable_mib=100))
    result = place(where, request(share("a", 60, 50), share("b", 40, 50)))
    assert result.taken.gpus == {gpu_uuid(0): Part(memory_mib=100, core_percent=100)}
    assert missing(where, request(share("a", 60), share("b", 41))) is Missing.NODE_TOO_SMALL
    assert missing(where, request(share("a", 1, 60), share("b", 1, 41))) is Missing.NODE_TOO_SMALL


def test_whole_cards_and_shares_of_one_pod_are_separate() -> None:
    result = place(capacity(card(0), card(1)), request(whole("a"), share("b", 10)))
    assert result.containers["a"].gpus[0].uuid != result.containers["b"].gpus[0].uuid
    assert missing(capacity(card(0), held(1)), request(whole("a"), share("b", 10))) is Missing.SHARES_DO_NOT_FIT
    assert missing(capacity(card(0)), request(whole("a"), share("b", 10))) is Missing.NODE_TOO_SMALL
    assert missing(capacity(card(0), card(1, usable=False)), request(whole("a"), share("b", 10))) is Missing.UNHEALTHY


def test_init_containers_take_turns_on_what_the_app_has() -> None:
    pod = request(whole("one", role=Role.INIT), share("two", 50000, role=Role.INIT), whole("app", 2))
    result = place(eight_gpus(), pod)
    assert {uuid: part.whole for uuid, part in result.taken.gpus.items()} == {gpu_uuid(0): True, gpu_uuid(1): True}


def test_an_init_container_takes_more_only_where_the_apps_do_not_suffice() -> None:
    result = place(eight_gpus(), request(whole("init", 3, role=Role.INIT), whole("app", 2)))
    init, app = ({gpu.uuid for gpu in result.containers[name].gpus} for name in ("init", "app"))
    assert app < init
    assert set(result.taken.gpus) == init


def test_a_larger_init_share_raises_what_the_pod_takes_of_the_card() -> None:
    result = place(capacity(card(0), card(1)), request(share("init", 300, 10, role=Role.INIT), share("app", 200, 20)))
    assert result.taken.gpus == {gpu_uuid(0): Part(memory_mib=300, core_percent=20)}


def test_a_sidecar_shares_no_whole_card_with_what_runs_beside_it() -> None:
    pod = request(whole("sidecar", role=Role.SIDECAR), whole("init", role=Role.INIT), whole("app"))
    assert missing(capacity(card(0)), pod) is Missing.TOO_FEW_GPUS
    result = place(capacity(card(0), card(1)), pod)
    assert result.containers["init"].gpus == result.containers["app"].gpus != result.containers["sidecar"].gpus


def test_an_init_container_before_the_sidecar_may_have_its_card() -> None:
    pod = request(whole("init", role=Role.INIT), whole("sidecar", role=Role.SIDECAR))
    assert len(place(capacity(card(0)), pod).taken.gpus) == 1


def test_over_commit_by_count() -> None:
    limits = Limits(spread_containers_per_card=2)
    where = capacity(card(0, usable_mib=100), card(1, usable_mib=100, free_mib=50, free_core=50))
    result = place(where, request(whole("a", 2), policy=Policy.SPREAD), limits=limits)
    assert result.taken.gpus == {gpu_uuid(n): Part(memory_mib=50, core_percent=50) for n in (0, 1)}
    assert isinstance(fit(where, request(whole("a", 2)), policy=Policy.BINPACK, limits=limits), NoFit)


@pytest.mark.parametrize(
    ("where", "pod", "expected"),
    [
        (capacity(card(0), reported=False), request(whole("a")), Missing.NO_REPORT),
        (capacity(card(0), reachable=False), request(whole("a")), Missing.UNREACHABLE),
        (capacity(card(0), rebooted=True), request(whole("a")), Missing.REBOOTED),
        (capacity(card(0), reconciled=False), request(whole("a")), Missing.NOT_RECONCILED),
        (capacity(vfs=[vf(0)], reconciled=False), request(rdma("a")), Missing.NOT_RECONCILED),
        (capacity(card(0)), request(whole("a"), gpu_model="NVIDIA A10"), Missing.NO_MODEL),
        (capacity(), request(whole("a")), Missing.TOO_FEW_GPUS),
        (capacity(), request(share("a", 1)), Missing.TOO_FEW_GPUS),
        (capacity(card(0), card(1)), request(whole("a", 3)), Missing.TOO_FEW_GPUS),
        (capacity(card(0), card(1, model="NVIDIA A10")), request(whole("a", 2), gpu_model="NVIDIA A10"), Missing.TOO_FEW_GPUS),
        (capacity(card(0), card(1, model="T4")), request(whole("a", 2), gpu_model="NVIDIA A10|T4"), Missing.TOO_FEW_GPUS),
        (capacity(card(0), card(1, mig_enabled=True)), request(whole("a", 2)), Missing.TOO_FEW_GPUS),
        (capacity(card(0), held(1)), request(whole("a", 2)), Missing.TOO_FEW_FREE_GPUS),
        (capacity(card(0, free_mib=80000)), request(whole("a")), Missing.TOO_FEW_FREE_GPUS),
        (capacity(card(0), card(1, usable=False)), request(whole("a", 2)), Missing.UNHEALTHY),
        (capacity(card(0), card(1, unhealthy="fell off the bus")), request(whole("a", 2)), Missing.UNHEALTHY),
        (capacity(card(0), card(1, used_by="process 7")), request(whole("a", 2)), Missing.UNHEALTHY),
        (capacity(card(0), card(1, dirty="90 MiB of it")), request(whole("a", 2)), Missing.UNHEALTHY),
        (capacity(card(0, usable=False)), request(share("a", 1)), Missing.UNHEALTHY),
        (capacity(card(0, usable_mib=10)), request(share("a", 11)), Missing.NO_CARD_LARGE_ENOUGH),
        (capacity(card(0, usable_mib=2)), request(share("a", core_percent=49)), Missing.NO_CARD_LARGE_ENOUGH),  # not one MiB
        (capacity(card(0, free_mib=10)), request(share("a", 11)), Missing.NO_CARD_WITH_ROOM),
        (capacity(card(0, free_core=10)), request(share("a", 1, 11)), Missing.NO_CARD_WITH_ROOM),
        (capacity(card(0, free_mib=8192)), request(share("a", core_percent=11)), Missing.NO_CARD_WITH_ROOM),
        (capacity(held(0)), request(share("a", 1)), Missing.NO_CARD_WITH_ROOM),
        (capacity(vfs=[vf(0)]), request(rdma("a", 2)), Missing.TOO_FEW_VFS),
        (capacity(vfs=[vf(0)]), request(rdma("a"), rdma("b")), Missing.TOO_FEW_VFS),
        (capacity(vfs=[vf(0), vf(1, held=True)]), request(rdma("a", 2)), Missing.TOO_FEW_FREE_VFS),
        (capacity(vfs=[vf(0), vf(1, usable=False)]), request(rdma("a", 2)), Missing.UNHEALTHY),
        # A reason that holds for ever comes before one that holds now.
        (capacity(held(0)), request(whole("a", vfs=1)), Missing.TOO_FEW_VFS),
        (capacity(held(0), vfs=[vf(0, held=True)]), request(whole("a", vfs=1)), Missing.TOO_FEW_FREE_GPUS),
        (capacity(held(0)), request(whole("a"), share("b", 2**20)), Missing.NO_CARD_LARGE_ENOUGH),
    ],
)
def test_the_reason_why_a_pod_does_not_fit(where: NodeCapacity, pod: DeviceRequest, expected: Missing) -> None:
    assert missing(where, pod) is expected


def test_a_search_that_was_ended_is_reported() -> None:
    pod = request(share("a", 6), share("b", 5), share("c", 4), share("d", 3))
    where = capacity(card(0, usable_mib=9), card(1, usable_mib=9))
    assert isinstance(fit(where, pod, policy=Policy.BINPACK), Placement)
    assert fit(where, pod, policy=Policy.BINPACK, limits=Limits(search_steps=1)) == NoFit(missing=Missing.SEARCH_ENDED)


def test_an_ended_search_is_not_reported_as_never_fitting() -> None:
    pod = request(share("a", 6), share("b", 5), share("c", 4), share("d", 3))
    where = capacity(card(0, usable_mib=9, free_mib=6), card(1, usable_mib=9, free_mib=5))
    result = fit(where, pod, policy=Policy.BINPACK, limits=Limits(search_steps=2))  # on the empty node it needs three
    assert result == NoFit(missing=Missing.SHARES_DO_NOT_FIT)


def test_the_pods_own_policy_counts_before_the_clusters() -> None:
    where = capacity(card(0, free_mib=100), card(1))
    [gpu] = place(where, request(share("a", 50), policy=Policy.SPREAD)).containers["a"].gpus
    assert gpu.uuid == gpu_uuid(1)
