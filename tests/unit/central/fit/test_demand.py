import pytest

from central.ask.model import Policy, RdmaPolicy, Role
from central.fit.demand import Limits, read_demand
from tests.fakes.rooms import ask, rdma, share, whole

POD = ask(
    rdma("first", 1, role=Role.INIT),
    share("proxy", 10, role=Role.SIDECAR, vfs=1),
    whole("load", 2, role=Role.INIT, vfs=2),
    whole("train", 1, vfs=1),
    share("side", 20),
)


def test_each_container_runs_in_its_phases() -> None:
    demand = read_demand(POD, Policy.BINPACK)
    assert demand.phases == 3
    assert {one.container: one.phases for one in demand.cards} == {
        "proxy": (1, 2),
        "load": (1,),
        "train": (2,),
        "side": (2,),
    }


def test_peaks_are_those_of_one_time() -> None:
    demand = read_demand(POD, Policy.BINPACK)
    assert demand.whole_peak == 2
    assert demand.vfs_peak == 3


def test_whole_cards_are_chosen_before_shares_and_large_shares_before_small_ones() -> None:
    demand = read_demand(POD, Policy.BINPACK)
    assert [one.container for one in demand.cards] == ["train", "load", "side", "proxy"]


def test_a_share_by_compute_alone_is_the_same_percentage_of_a_cards_memory_rounded_down() -> None:
    [wanted] = read_demand(ask(share("a", core_percent=30)), Policy.BINPACK).cards
    assert wanted.mib_of(101) == 30
    [wanted] = read_demand(ask(share("a", 7, 30)), Policy.BINPACK).cards
    assert wanted.mib_of(101) == 7


@pytest.mark.parametrize(("policy", "per_card"), [(Policy.BINPACK, 4), (Policy.SPREAD, 0), (Policy.SPREAD, 1)])
def test_a_whole_card_is_whole(policy: Policy, per_card: int) -> None:
    [wanted] = read_demand(ask(whole("a", 2)), policy, Limits(spread_containers_per_card=per_card)).cards
    assert wanted.whole


def test_over_commit_by_count_makes_a_card_a_share_of_it() -> None:
    demand = read_demand(ask(whole("a", 2)), Policy.SPREAD, Limits(spread_containers_per_card=3))
    [wanted] = demand.cards
    assert (wanted.count, wanted.whole, wanted.core_percent, wanted.mib_of(100)) == (2, False, 33, 33)
    assert demand.whole_peak == 0


def test_only_nearest_looks_at_distances() -> None:
    assert read_demand(POD, Policy.BINPACK).nearest
    assert not read_demand(ask(rdma("a"), rdma_policy=RdmaPolicy.COUNT), Policy.BINPACK).nearest
