"""Test cards and VFs of one container together, in cases where a choice one after the other fails."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Role, Scope
from central.search import joint
from central.search.demand import Limits
from central.search.fit import fit
from central.search.joint import find
from central.search.placement import Missing, NoFit, Placement
from central.search.topology import NEXT_TO, Distance
from lading.nodedevices import Status
from lading.vocabulary import PciAddress
from tests.fakes.capacities import capacity, card, eight_gpus, gpu_bdf, held, port, rdma, request, share, vf, vf_bdf, whole
from tests.unit.central.search.test_fit import missing, place
from tests.unit.central.search.test_sixteen import sixteen

NODES: Final = Path(__file__).parents[4] / "simnode/nodedevices"


def node(name: str, *, held_cards: Collection[int] = (), held_vfs: Collection[int] = ()) -> NodeCapacity:
    """Return a shipped profile; cards by module id or else by place, from 1; VFs by place, from 0."""
    status = msgspec.json.decode((NODES / f"{name}.json").read_bytes(), type=Status)
    cards = []
    for number, gpu in enumerate(status.gpus, start=1):
        pods = int((gpu.module_id or number) in held_cards)
        mib = 0 if pods else gpu.usable_mib
        cards.append(CardCapacity(gpu=gpu, free_mib=mib, free_core=0 if pods else 100, pods=pods, containers=pods, usable=True))
    vfs = [(pf, vf) for pf in status.pfs for vf in pf.vfs]
    capacities = [VfCapacity(vf=vf, pf=pf, usable=True, free=number not in held_vfs) for number, (pf, vf) in enumerate(vfs)]
    return NodeCapacity(name=name, version=1, cards=tuple(cards), vfs=tuple(capacities), partitions=status.partitions)


def switch_of(path: Sequence[str]) -> str:
    """Return the switch: MN-2A's root ports have one switch each."""
    return path[1]


def switches(where: NodeCapacity, placement: Placement, container: str = "a") -> list[str]:
    """Return the switches of the container's GPUs and VFs, in their order."""
    placed = placement.containers[container]
    of_gpu = {one.gpu.uuid: switch_of(one.gpu.place.path) for one in where.cards}
    of_vf = {one.vf.bdf: switch_of(one.pf.place.path) for one in where.vfs}
    return [*(of_gpu[gpu.uuid] for gpu in placed.gpus), *(of_vf[one.bdf] for one in placed.vfs)]


def modules(where: NodeCapacity, pod: DeviceRequest) -> set[int | None]:
    placed = {gpu.uuid for gpu in place(where, pod).containers["a"].gpus}
    return {one.gpu.module_id for one in where.cards if one.gpu.uuid in placed}


def after(where: NodeCapacity, placement: Placement) -> NodeCapacity:
    """Return the node with the placed devices held."""
    cards = [
        replace(one, pods=1, containers=1, free_mib=0, free_core=0) if one.gpu.uuid in placement.taken.gpus else one
        for one in where.cards
    ]
    vfs = [replace(one, free=False) if one.vf.bdf in placement.taken.vfs else one for one in where.vfs]
    return replace(where, cards=tuple(cards), vfs=tuple(vfs))


# ---- one GPU and one NIC


def states_of_mn2a() -> Iterator[tuple[set[int], set[int]]]:
    """Yield every set of held cards, with or without free VFs on each switch: each can result from some order of pods."""
    for cards, full in product(product([False, True], repeat=8), product([False, True], repeat=4)):
        if not all(cards) and not all(full):
            of_full = {16 // 4 * switch + number for switch in range(4) if full[switch] for number in range(4)}
            yield {number for number, is_held in enumerate(cards, start=1) if is_held}, of_full


@pytest.mark.parametrize("name", ["mn2a", "mn2a-one-bridge"])
@pytest.mark.long
def test_a_gpu_and_its_nic_are_on_one_switch_until_no_switch_has_both_free(name: str) -> None:
    """Check PFN's case: 10.5 GB/s on one switch, 3.5 GB/s on a detour."""
    pod = request(whole("a", vfs=1))
    where = node(name)
    places = [switch_of(one.gpu.place.path) for one in where.cards]
    for held_cards, held_vfs in states_of_mn2a():
        state = replace(
            where,
            cards=tuple(replace(one, pods=int(n in held_cards)) for n, one in enumerate(where.cards, start=1)),
            vfs=tuple(replace(one, free=n not in held_vfs) for n, one in enumerate(where.vfs)),
        )
        with_both = {places[n - 1] for n in range(1, 9) if n not in held_cards} & {
            switch_of(one.pf.place.path) for one in state.vfs if one.free
        }
        gpu, nic = switches(state, place(state, pod))
        assert (gpu == nic) == bool(with_both)


def test_a_node_is_filled_with_pods_of_one_switch_each_and_nothing_is_given_twice() -> None:
    where = node("mn2a")
    given: list[PciAddress] = []
    for _ in range(8):
        result = place(where, request(whole("a", vfs=2)))
        assert len(set(switches(where, result))) == 1
        given += [*(gpu.bdf for gpu in result.containers["a"].gpus), *(one.bdf for one in result.containers["a"].vfs)]
        where = after(where, result)
    assert len(set(given)) == len(given) == 8 * 3
    assert missing(where, request(whole("a", vfs=2))) is Missing.TOO_FEW_FREE_GPUS


# ---- what Koordinator does not see


def test_two_switches_below_one_host_bridge_are_two() -> None:
    where = node("mn2a-one-bridge", held_cards={1, 3})
    assert len({one.gpu.place.path[0] for one in where.cards[:4]}) == 1
    two, *with_nics = switches(where, place(where, request(whole("a", 2, vfs=2))))
    assert [two] * 3 == with_nics  # cards 5 and 6, although 2 and 4 are below one host bridge


def cascaded(*, held_cards: Collection[int] = (), held_vfs: Collection[int] = ()) -> NodeCapacity:
    """Return a switch below one root port with two switches behind it: cards 0 and 3 on the one, 1 and 2 on the other, and a PF
    of two VFs on each; the PF of the lower address, with VFs 0 and 1, is on the other."""
    cards = [held(n) if n in held_cards else card(n, switch=0, behind=[n in {1, 2}]) for n in range(4)]
    pfs = [port(n, switch=0, behind=[n == 0]) for n in range(2)]
    return capacity(*cards, vfs=[vf(n % 2, pf=pfs[n // 2], held=n in held_vfs) for n in range(4)])


def given(placement: Placement) -> tuple[list[PciAddress], list[PciAddress]]:
    placed = placement.containers["a"]
    return sorted(gpu.bdf for gpu in placed.gpus), sorted(one.bdf for one in placed.vfs)


def test_the_nic_of_the_cards_own_cascaded_switch_is_preferred() -> None:
    assert given(place(cascaded(), request(whole("a", vfs=1)))) == ([gpu_bdf(0)], [vf_bdf(0, pf=1)])
    assert given(place(cascaded(held_cards={0, 3}), request(whole("a", vfs=1)))) == ([gpu_bdf(1)], [vf_bdf(0, pf=0)])
    assert given(place(cascaded(held_vfs={2, 3}), request(whole("a", vfs=1)))) == ([gpu_bdf(1)], [vf_bdf(0, pf=0)])
    farther = place(cascaded(held_cards={1, 2}, held_vfs={2, 3}), request(whole("a", vfs=1)))
    assert (given(farther), farther.distances.distance) == (([gpu_bdf(0)], [vf_bdf(0, pf=0)]), Distance.SWITCHES)


def test_two_cards_are_taken_from_one_cascaded_switch() -> None:
    assert given(place(cascaded(), request(whole("a", 2))))[0] == [gpu_bdf(0), gpu_bdf(3)]
    assert given(place(cascaded(held_cards={0}), request(whole("a", 2))))[0] == [gpu_bdf(1), gpu_bdf(2)]
    assert given(place(cascaded(held_cards={0, 1}), request(whole("a", 2))))[0] == [gpu_bdf(2), gpu_bdf(3)]


def test_to_a_scope_and_to_vfs_on_each_switch_cascaded_ones_are_one() -> None:
    assert len(given(place(cascaded(), request(whole("a", 4, vfs=4), scope=Scope.SWITCH)))[0]) == 4
    per_switch = request(whole("a", 4, vfs=3), rdma_policy=RdmaPolicy.PER_SWITCH)
    assert given(place(cascaded(), per_switch))[1] == [vf_bdf(0, pf=0), vf_bdf(1, pf=0), vf_bdf(0, pf=1)]
    beside = place(cascaded(held_vfs={2, 3}), request(whole("a", 4, vfs=2), rdma_policy=RdmaPolicy.PER_SWITCH))
    assert given(beside)[1] == [vf_bdf(0, pf=0), vf_bdf(1, pf=0)]


def test_a_dgx_a100_has_four_switches_although_each_is_a_cascade() -> None:
    where = node("dgx-a100")
    assert len(set(switches(where, place(where, request(whole("a", 2, vfs=4), scope=Scope.SWITCH))))) == 1
    result = place(where, request(whole("a", 4, vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH))
    assert len(result.containers["a"].vfs) == len(set(switches(where, result))) == 2
    assert missing(where, request(whole("a", 3), scope=Scope.SWITCH)) is Missing.NOT_WITHIN_SCOPE


def test_gpus_are_chosen_by_which_vfs_are_free() -> None:
    """Leave no VF on the switch of the first two GPUs, and one on the next switch."""
    where = node("mn2a", held_vfs={0, 1, 2, 3, 4, 5, 6})
    assert len(set(switches(where, place(where, request(whole("a", vfs=1)))))) == 1
    assert len(set(switches(where, place(where, request(whole("a", 2, vfs=2)))))) == 1


def test_a_card_that_is_taken_in_part_is_no_one_elses_whole_card() -> None:
    where = capacity(card(0, free_mib=1), card(1, free_core=99), card(2))
    assert missing(where, request(whole("a", 2))) is Missing.TOO_FEW_FREE_GPUS


@pytest.mark.parametrize("order", [1, -1])
def test_the_partition_that_breaks_the_fewest_others_not_the_first(order: int) -> None:
    where = node("dgx-h100", held_cards={7})
    where = replace(where, partitions=where.partitions[::order])
    assert modules(where, request(whole("a", 2))) == {
        6,
        8,
    }  # among {1, 3}, {2, 4} and {6, 8}, because partition 1-4 stays whole
    assert modules(where, request(whole("a", 4))) == {1, 2, 3, 4}
    assert modules(node("dgx-h100", held_cards={1}), request(whole("a", 4))) == {5, 6, 7, 8}
    assert modules(where, request(whole("a"))) == {5}  # the partition of card 5 is broken already


# ---- partitions


@pytest.mark.parametrize("policy", Policy)
def test_an_honored_partition_is_met_exactly(policy: Policy) -> None:
    honor = PartitionPolicy.HONOR
    where = node("dgx-h100", held_cards={1, 7})
    assert missing(where, request(whole("a", 3), partition=honor)) is Missing.NO_PARTITION
    assert missing(where, request(whole("a", 4), partition=honor, policy=policy)) is Missing.NO_FREE_PARTITION
    assert modules(where, request(whole("a", 2), partition=honor)) == {6, 8}  # these cards have lower addresses than {2, 4}
    assert len(modules(where, request(whole("a", 4), partition=PartitionPolicy.PREFER))) == 4
    assert (
        missing(node("dgx-h100", held_cards=range(1, 9)), request(whole("a", 2), partition=honor)) is Missing.TOO_FEW_FREE_GPUS
    )


def test_a_node_without_partitions_has_none_to_honor() -> None:
    assert modules(node("mn2a"), request(whole("a", 3), partition=PartitionPolicy.HONOR)) == {1, 2, 3}


def test_the_cluster_may_honor_partitions() -> None:
    result = fit(
        node("dgx-h100"), request(whole("a", 3)), policy=Policy.BINPACK, limits=Limits(partition=PartitionPolicy.HONOR)
    )
    assert result == NoFit(missing=Missing.NO_PARTITION)


def test_two_containers_with_a_partition_each() -> None:
    pod = request(whole("a", 4), whole("b", 2), whole("c", 2), partition=PartitionPolicy.HONOR)
    result = place(node("dgx-h100"), pod)
    assert len(result.taken.gpus) == 8
    assert missing(node("dgx-h100", held_cards={8}), pod) is Missing.TOO_FEW_FREE_GPUS


# ---- which VFs


def test_a_vf_on_each_switch_that_has_a_gpu() -> None:
    pod = request(whole("a", 4, vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH)
    where = node("mn2a")
    *gpus, one, other = switches(where, place(where, pod))
    assert {one, other} == set(gpus)
    assert one != other
    three = place(where, request(whole("a", 3, vfs=2), rdma_policy=RdmaPolicy.PER_SWITCH))
    assert len(three.containers["a"].vfs) == 4


def test_cards_below_a_switch_without_enough_vfs_are_not_taken() -> None:
    where = node("mn2a", held_vfs={0, 1, 2})  # the first switch has one left
    result = place(where, request(whole("a", vfs=2), rdma_policy=RdmaPolicy.PER_SWITCH))
    assert switches(where, result)[0] == switch_of(where.cards[2].gpu.place.path)


def test_vfs_of_every_pf() -> None:
    where = node("mn2a", held_vfs={0, 5})
    result = place(where, request(whole("a", vfs=2), rdma_policy=RdmaPolicy.PER_PF))
    assert len(result.containers["a"].vfs) == 8
    assert {one.pf for one in result.containers["a"].vfs} == {one.pf.bdf for one in where.vfs}
    assert place(where, request(rdma("a"), rdma_policy=RdmaPolicy.PER_PF)).containers["a"].vfs


def test_a_pf_of_which_nothing_may_be_given_is_not_one_of_every_pf() -> None:
    where = capacity(vfs=[vf(0, pf=0), vf(0, pf=1, usable=False), vf(1, pf=2)])
    result = place(where, request(rdma("a"), rdma_policy=RdmaPolicy.PER_PF))
    assert result.taken.vfs == {vf_bdf(0, pf=0), vf_bdf(1, pf=2)}


def test_several_vfs_of_one_pf_rather_than_one_from_afar() -> None:
    result = place(eight_gpus(held_cards={0, 1, 2, 3, 4, 5, 7}), request(whole("a", vfs=3)))
    assert [one.bdf for one in result.containers["a"].vfs] == [vf_bdf(n, pf=3) for n in range(3)]


@pytest.mark.parametrize(
    ("gpus", "vfs", "of_each_pf"), [(4, 4, [2, 2]), (2, 4, [4]), (4, 2, [1, 1]), (3, 2, [1, 1]), (2, 3, [3]), (4, 6, [3, 3])]
)
def test_pairs_are_shared_out_evenly(gpus: int, vfs: int, of_each_pf: list[int]) -> None:
    result = place(eight_gpus(), request(whole("a", gpus, vfs=vfs)))
    pfs = [one.pf for one in result.containers["a"].vfs]
    assert [pfs.count(pf) for pf in sorted(set(pfs))] == of_each_pf
    assert result.distances.distance == 0


# ---- a required scope, and what is missing


@pytest.mark.parametrize(
    ("where", "pod", "expected"),
    [
        (eight_gpus(), request(whole("a", 3), scope=Scope.SWITCH), Missing.NOT_WITHIN_SCOPE),
        (eight_gpus(held_cards={0, 2, 4, 6}), request(whole("a", 2), scope=Scope.SWITCH), Missing.NOT_FREE_WITHIN_SCOPE),
        (eight_gpus(held_cards={0, 4}), request(whole("a", 4), scope=Scope.NUMA), Missing.NOT_FREE_WITHIN_SCOPE),
        (eight_gpus(), request(whole("a", 5), scope=Scope.SOCKET), Missing.NOT_WITHIN_SCOPE),
        (eight_gpus(), request(whole("a", vfs=5), scope=Scope.SWITCH), Missing.NOT_WITHIN_SCOPE),
        (eight_gpus(), request(rdma("a", 9), scope=Scope.NUMA), Missing.NOT_WITHIN_SCOPE),
        (eight_gpus(held_vfs=range(14)), request(rdma("a", 2), scope=Scope.SWITCH), None),
        (eight_gpus(held_vfs={*range(15)} - {3}), request(rdma("a", 2), scope=Scope.NUMA), Missing.NOT_FREE_WITHIN_SCOPE),
        (
            capacity(card(0, switch=None), card(1, switch=None)),
            request(whole("a", 2), scope=Scope.SOCKET),
            Missing.NOT_WITHIN_SCOPE,
        ),
        (capacity(card(0, switch=None)), request(whole("a"), scope=Scope.SWITCH), None),
        (capacity(card(0), card(1, unhealthy="Xid"), card(2)), request(whole("a", 2), scope=Scope.SWITCH), Missing.UNHEALTHY),
        (capacity(card(0), vfs=[vf(0, pf=1)]), request(share("a", 1, vfs=1), scope=Scope.SWITCH), Missing.NOT_WITHIN_SCOPE),
        (capacity(card(0), vfs=[vf(0, pf=1)]), request(share("a", 1, vfs=1), scope=Scope.NUMA), None),
        (
            capacity(card(0), vfs=[vf(0, pf=1)]),
            request(whole("a", vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH),
            Missing.TOO_FEW_VFS_OF_SWITCH,
        ),
        (
            capacity(card(0), held(2), vfs=[vf(0, pf=1)]),
            request(whole("a", vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH),
            Missing.TOO_FEW_FREE_VFS_OF_SWITCH,
        ),
        (
            capacity(card(0), vfs=[vf(0), vf(0, pf=1, held=True)]),
            request(rdma("a"), rdma_policy=RdmaPolicy.PER_PF),
            Missing.TOO_FEW_FREE_VFS_OF_PF,
        ),
        (
            capacity(card(0), vfs=[vf(0), vf(1), vf(0, pf=1)]),
            request(rdma("a", 2), rdma_policy=RdmaPolicy.PER_PF),
            Missing.TOO_FEW_VFS_OF_PF,
        ),
        (capacity(card(0)), request(rdma("a"), rdma_policy=RdmaPolicy.PER_PF), Missing.TOO_FEW_VFS),
        (capacity(vfs=[vf(0, usable=False)]), request(rdma("a"), rdma_policy=RdmaPolicy.PER_PF), Missing.UNHEALTHY),
        (eight_gpus(), request(whole("a", 2), whole("b", 2), whole("c", 1), scope=Scope.SWITCH), None),
        (
            eight_gpus(held_cards={0, 2, 4}),
            request(whole("a", 2), whole("b", 2), scope=Scope.SWITCH),
            Missing.SHARES_DO_NOT_FIT,
        ),
        (capacity(card(0), card(1), card(2)), request(whole("a", 2), whole("b"), scope=Scope.SWITCH), None),
    ],
)
def test_the_reason_why_a_pod_does_not_fit_within_its_scope(
    where: NodeCapacity, pod: DeviceRequest, expected: Missing | None
) -> None:
    if expected is None:
        place(where, pod)
    else:
        assert missing(where, pod) is expected


def test_everything_of_a_container_is_within_the_scope_and_containers_may_be_separate() -> None:
    where = eight_gpus(held_cards={0, 2})
    result = place(where, request(whole("a", 2, vfs=3), whole("b", vfs=2), scope=Scope.SWITCH))
    assert {len(set(switches(where, result, name))) for name in "ab"} == {1}


# ---- containers in turn


def test_a_container_leaves_the_only_switch_that_would_do_to_the_next() -> None:
    """Check that the container leaves the first switch, which has more VFs and which it would take alone."""
    where = eight_gpus(held_cards={2, 3, 6, 7}, held_vfs={8, 9, 10})
    first = request(whole("a", vfs=1), scope=Scope.SWITCH)
    assert switches(where, place(where, first))[0] == switch_of(where.cards[0].gpu.place.path)
    result = place(where, request(*first.containers, whole("b", 2, vfs=3), scope=Scope.SWITCH))
    assert switches(where, result, "b")[0] == switch_of(where.cards[0].gpu.place.path)


def test_a_container_that_leaves_a_switch_to_the_next_takes_the_next_best() -> None:
    """Check that the switch whose PF has more VFs left is chosen, although another switch has the lower address."""
    where = eight_gpus(held_cards={6, 7}, held_vfs={4, 5, 6, 8, 9})
    result = place(where, request(whole("a", vfs=1), whole("b", 2, vfs=3), scope=Scope.SWITCH))
    assert [switches(where, result, name)[0] for name in "ab"] == [switch_of(where.cards[n].gpu.place.path) for n in (4, 0)]


def test_vfs_alone_leave_the_only_switch_that_would_do_too() -> None:
    where = capacity(card(0), vfs=[vf(0, pf=0), vf(0, pf=1), vf(1, pf=1, held=True)])
    pod = request(rdma("net"), whole("a", vfs=1), scope=Scope.SWITCH)
    assert place(where, pod).containers["net"].vfs[0].bdf == vf_bdf(0, pf=1)


def test_an_init_container_uses_the_devices_of_the_app_again() -> None:
    where = eight_gpus()
    pod = request(whole("init", 2, vfs=2, role=Role.INIT), whole("a", 2, vfs=1), scope=Scope.SWITCH)
    result = place(where, pod)
    assert (len(result.taken.gpus), len(result.taken.vfs)) == (2, 2)


def test_an_init_container_takes_a_new_vf_rather_than_a_new_gpu() -> None:
    where = eight_gpus(held_vfs={1, 2, 3})
    pod = request(whole("init", vfs=1, role=Role.INIT), whole("a"), rdma("net"), scope=Scope.SWITCH)
    result = place(where, pod)
    assert len(result.taken.gpus) == 1


# ---- shares


def test_of_cards_with_room_for_a_share_one_near_a_free_vf() -> None:
    where = capacity(card(0, free_mib=100), card(2, free_mib=500), card(3), vfs=[vf(0, pf=1)])
    assert place(where, request(share("a", 50))).containers["a"].gpus[0].bdf == where.cards[0].gpu.bdf
    assert place(where, request(share("a", 50, vfs=1))).containers["a"].gpus[0].bdf == where.cards[1].gpu.bdf


def test_but_by_count_where_the_policy_says() -> None:
    where = capacity(card(0, free_mib=100), card(2, free_mib=500), vfs=[vf(0, pf=1)])
    pod = request(share("a", 50, vfs=1), rdma_policy=RdmaPolicy.COUNT)
    assert place(where, pod).containers["a"].gpus[0].bdf == where.cards[0].gpu.bdf


def test_several_shares_within_a_scope() -> None:
    where = capacity(card(0, free_mib=9000, containers=1), card(1), card(2, free_core=50), card(3, free_core=50))
    limits = Limits(spread_containers_per_card=2)
    pod = request(whole("a", 2, vfs=0), scope=Scope.SWITCH, policy=Policy.SPREAD)
    result = fit(where, pod, policy=Policy.BINPACK, limits=limits)
    assert isinstance(result, Placement)
    assert [gpu.bdf for gpu in result.containers["a"].gpus] == [where.cards[n].gpu.bdf for n in (2, 3)]


# ---- how good it is


def test_a_placement_says_how_close_it_is() -> None:
    assert place(eight_gpus(), request(whole("a", vfs=1))).distances == NEXT_TO
    near, far = place(eight_gpus(), request(whole("a", 2))), place(eight_gpus(), request(whole("a", 5)))
    assert near.distances.link < far.distances.link
    assert place(eight_gpus(held_vfs=range(4)), request(whole("a", 7, vfs=7))).distances.distance > 0


# A node that is too large to look at everything


@pytest.fixture
def one_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find.cache_clear()
    monkeypatch.setattr("central.search.joint.MOST_SETS", 1)
    yield
    find.cache_clear()


@pytest.mark.usefixtures("one_set")
def test_the_best_of_a_bounded_number_of_sets_is_taken() -> None:
    vfs = [vf(0, pf=port(1, switch=1))]
    first = place(capacity(card(0, switch=0), card(1, switch=1), vfs=vfs), request(whole("a", vfs=1)))
    assert [gpu.uuid for gpu in first.containers["a"].gpus] == [card(0).gpu.uuid]


@pytest.mark.usefixtures("one_set")
def test_a_bounded_search_that_finds_nothing_is_reported_as_ended() -> None:
    where = capacity(card(0, switch=0), card(1, switch=1), card(2, switch=2), card(3, switch=2))
    result = fit(where, request(whole("init", role=Role.INIT), whole("a", 2)), policy=Policy.BINPACK)
    assert result == NoFit(missing=Missing.SETS_ENDED)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the sets of cards that a search judged."""
    observed: list[int] = []
    judge = joint._Search._judge

    def counted(self: joint._Search, cards: int, *args: Any) -> None:
        observed.append(cards)
        judge(self, cards, *args)

    monkeypatch.setattr(joint._Search, "_judge", counted)
    joint.find.cache_clear()
    return observed


def test_why_a_pod_does_not_fit_asks_for_any_choice_and_not_for_the_best(judged: list[int]) -> None:
    where = sixteen(lambda switch, number: switch % 2 == 0)
    result = fit(where, request(whole("a", 9, vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH), policy=Policy.BINPACK)
    assert result == NoFit(missing=Missing.TOO_FEW_FREE_VFS_OF_SWITCH)
    assert len(judged) < 100


def test_a_place_with_too_few_free_vfs_is_not_searched(judged: list[int]) -> None:
    """Place all GPUs on a socket with four free VFs; eight more VFs are elsewhere."""
    near = sixteen(lambda switch, number: switch < 4 and number == 0, socket=0)
    away = [vf(number, pf=port(16, switch=16)) for number in range(8)]
    result = fit(
        replace(near, vfs=(*near.vfs, *away)), request(whole("a", 8, vfs=8), scope=Scope.SOCKET), policy=Policy.BINPACK
    )
    assert result == NoFit(missing=Missing.NOT_FREE_WITHIN_SCOPE)
    assert len(judged) < 100
