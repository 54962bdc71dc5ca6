from dataclasses import replace

import pytest

from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Role, Scope
from central.search.demand import Limits, read_demand
from tests.fakes.capacities import rdma, request, share, whole

POD = request(
    rdma("first", 1, role=Role.INIT),
    share("proxy", 10, role=Role.SIDECAR, vfs=1),
    whole("load", 2, role=Role.INIT, vfs=2),
    whole("train", 1, vfs=1),
    share("side", 20),
)


def test_each_container_runs_in_its_phases() -> None:
    demand = read_demand(POD, Policy.BINPACK)
    assert demand.phases == 3
    assert {one.container: one.phases for one in demand.cards} == {"proxy": (1, 2), "load": (1,), "train": (2,), "side": (2,)}


def test_peaks_are_those_of_one_time() -> None:
    demand = read_demand(POD, Policy.BINPACK)
    assert demand.whole_peak == 2
    assert demand.vfs_peak == 3


def test_whole_cards_are_chosen_before_shares_and_large_shares_before_small_ones() -> None:
    without_vfs = request(*(replace(one, vfs=0) for one in POD.containers if one.name != "first"))
    demand = read_demand(without_vfs, Policy.BINPACK)
    assert [one.container for one in demand.cards] == ["train", "load", "side", "proxy"]


def test_with_vfs_those_of_the_last_phase_are_chosen_before_that_and_vfs_alone_come_last() -> None:
    demand = read_demand(request(*POD.containers, rdma("net")), Policy.BINPACK)
    assert [one.container for one in demand.wanted] == ["train", "side", "proxy", "net", "load", "first"]
    assert [one.container for one in demand.cards] == ["train", "side", "proxy", "load"]


def test_a_share_by_compute_alone_is_the_same_percentage_of_a_cards_memory_rounded_down() -> None:
    [wanted] = read_demand(request(share("a", core_percent=30)), Policy.BINPACK).cards
    assert wanted.mib_of(101) == 30
    [wanted] = read_demand(request(share("a", 7, 30)), Policy.BINPACK).cards
    assert wanted.mib_of(101) == 7


@pytest.mark.parametrize(("policy", "per_card"), [(Policy.BINPACK, 4), (Policy.SPREAD, 0), (Policy.SPREAD, 1)])
def test_a_whole_card_is_whole(policy: Policy, per_card: int) -> None:
    [wanted] = read_demand(request(whole("a", 2)), policy, Limits(spread_containers_per_card=per_card)).cards
    assert wanted.whole


def test_over_commit_by_count_makes_a_card_a_share_of_it() -> None:
    demand = read_demand(request(whole("a", 2)), Policy.SPREAD, Limits(spread_containers_per_card=3))
    [wanted] = demand.cards
    assert (wanted.count, wanted.whole, wanted.core_percent, wanted.mib_of(100)) == (2, False, 33, 33)
    assert demand.whole_peak == 0


@pytest.mark.parametrize(
    ("pod", "bound"),
    [
        (request(whole("a", vfs=1)), False),
        (request(whole("a", vfs=1), rdma_policy=RdmaPolicy.COUNT), False),
        (request(whole("a", vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH), True),
        (request(whole("a", vfs=1), rdma_policy=RdmaPolicy.PER_PF), True),
        (request(whole("a"), scope=Scope.NUMA), True),
        (request(whole("a"), partition=PartitionPolicy.HONOR), True),
        (request(share("a", 1), partition=PartitionPolicy.HONOR), False),
    ],
)
def test_whether_places_decide_if_it_fits(pod: DeviceRequest, bound: bool) -> None:
    assert read_demand(pod, Policy.BINPACK).bound is bound


def test_the_clusters_word_on_partitions_counts_where_the_pod_has_none_and_whole_cards() -> None:
    limits = Limits(partition=PartitionPolicy.HONOR)
    assert read_demand(request(whole("a")), Policy.BINPACK, limits).partition is PartitionPolicy.HONOR
    pod = request(whole("a"), partition=PartitionPolicy.PREFER)
    assert read_demand(pod, Policy.BINPACK, limits).partition is PartitionPolicy.PREFER
    assert read_demand(request(share("a", 1)), Policy.BINPACK, limits).partition is None


def test_a_partition_that_has_to_be_one_is_of_whole_cards() -> None:
    limits = Limits(spread_containers_per_card=4)
    honored = request(whole("c", 2), partition=PartitionPolicy.HONOR)
    assert [one.whole for one in read_demand(honored, Policy.SPREAD, limits).cards] == [True]
    assert [one.whole for one in read_demand(request(whole("c", 2)), Policy.SPREAD, limits).cards] == [False]
