"""Test which cards are taken, of those that would do."""

import pytest

from central.ledger.model import NodeCapacity
from central.request.model import DeviceRequest, Policy, Role
from central.search.demand import Limits
from central.search.fit import fit
from central.search.placement import Placement
from lading.nodedevices import NvLink
from tests.fakes.capacities import capacity, card, eight_gpus, gpu_bdf, gpu_uuid, held, request, share, whole


def taken(where: NodeCapacity, pod: DeviceRequest, policy: Policy, container: str = "a", per_card: int = 0) -> list[int]:
    """Return the taken card numbers."""
    result = fit(where, pod, policy=policy, limits=Limits(spread_containers_per_card=per_card))
    assert isinstance(result, Placement)
    return [int(gpu.bdf[5:7], 16) - int(gpu_bdf(0)[5:7], 16) for gpu in result.containers[container].gpus]


def binpack(where: NodeCapacity, pod: DeviceRequest, container: str = "a") -> list[int]:
    return taken(where, pod, Policy.BINPACK, container)


def spread(where: NodeCapacity, pod: DeviceRequest, container: str = "a") -> list[int]:
    return taken(where, pod, Policy.SPREAD, container)


def test_gpushares_example_of_best_fit() -> None:
    free = [12207, 8138, 4069, 16276]
    where = capacity(*(card(n, usable_mib=16276, free_mib=mib) for n, mib in enumerate(free)))
    assert binpack(where, request(share("a", 8138))) == [1]


def test_equal_fits_are_decided_by_compute_then_by_address() -> None:
    where = capacity(card(0, free_mib=100), card(1, free_mib=100, free_core=40), card(2, free_mib=100, free_core=40))
    assert binpack(where, request(share("a", 50, 10))) == [1]


def test_a_broken_switch_is_used_up_before_another_is_broken() -> None:
    assert binpack(eight_gpus(held_cards={5}), request(whole("a"))) == [4]
    assert binpack(eight_gpus(), request(whole("a"))) == [0]


@pytest.mark.parametrize(
    ("held_cards", "requested", "expected"),
    [
        ({0}, 2, [2, 3]),  # not 1 and 2, of two switches
        *(({0, 2}, 2, [4, 5]), ({0, 2, 4, 6}, 2, [1, 3]), ({0}, 3, [1, 2, 3]), ({1, 2}, 5, [0, 4, 5, 6, 7])),
        ((), 4, [0, 1, 2, 3]),
    ],
)
def test_several_cards_come_from_few_switches(held_cards: set[int], requested: int, expected: list[int]) -> None:
    assert binpack(eight_gpus(held_cards=held_cards), request(whole("a", requested))) == expected


def test_addresses_sort_as_numbers() -> None:
    """Sort addresses where the topology is unknown."""
    where = capacity(*(card(n, switch=None) for n in (3, 1, 2)))
    assert binpack(where, request(whole("a", 2))) == [1, 2]


def test_the_card_with_the_fewest_containers() -> None:
    where = capacity(
        card(0, free_mib=1000, containers=2), card(1, free_mib=90, containers=1), card(2, free_mib=100, containers=1)
    )
    assert spread(where, request(share("a", 50))) == [2]  # and of those the emptier


def test_the_pods_own_containers_count_as_load() -> None:
    where = capacity(card(0), card(1), card(2))
    pod = request(share("a", 30), share("b", 20), share("c", 10))
    assert [spread(where, pod, name) for name in "abc"] == [[0], [1], [2]]


def test_the_redis_designs_rule_for_several_cards() -> None:
    """Check the redis design's rule for cards given in part: the least loaded card, then the cards with the best link to it,
    NVLink before PCIe."""

    def cut(where: NodeCapacity) -> list[int]:
        return taken(where, request(whole("a", 2)), Policy.SPREAD, per_card=4)

    to_4 = [NvLink(count=2, to=gpu_uuid(4))]
    assert cut(capacity(held(0), card(1), card(2, nvlinks=to_4), card(3), card(4), card(5))) == [1, 2]  # not 2 and 4
    assert cut(capacity(held(0), held(1), card(2, nvlinks=[NvLink(count=2, to=gpu_uuid(5))]), card(3), card(5))) == [2, 5]
    assert cut(capacity(held(0), held(1), card(2), card(3), card(5))) == [2, 3]


@pytest.mark.parametrize("policy", Policy)
def test_whole_cards_go_by_their_links_under_every_policy(policy: Policy) -> None:
    """Check whole cards, which carry no load, so that none is the least loaded one."""
    where = capacity(held(0), card(1), card(2, nvlinks=[NvLink(count=2, to=gpu_uuid(4))]), card(3), card(4), card(5))
    assert taken(where, request(whole("a", 2)), policy) == [2, 4]


def test_the_least_loaded_of_equally_linked_cards_are_taken() -> None:
    """Check cards that differ in load only if whole cards are divided."""
    where = capacity(*(card(n, switch=0, free_mib=60000, free_core=75, containers=load) for n, load in enumerate([0, 2, 1])))
    result = fit(where, request(whole("a", 2)), policy=Policy.SPREAD, limits=Limits(spread_containers_per_card=4))
    assert isinstance(result, Placement)
    assert set(result.taken.gpus) == {gpu_uuid(0), gpu_uuid(2)}


def test_cards_that_the_pod_takes_anyway_are_preferred_to_linked_cards() -> None:
    where = capacity(card(0, nvlinks=[NvLink(count=2, to=gpu_uuid(2))]), card(1), card(2))
    pod = request(whole("init", 2, role=Role.INIT), whole("sidecar", role=Role.SIDECAR), whole("a"))
    assert (spread(where, pod, "sidecar"), spread(where, pod)) == ([2], [0])  # the one whose switch has no other first
    where = capacity(card(0, nvlinks=[NvLink(count=2, to=gpu_uuid(2))]), card(1, switch=1), card(2))
    assert (spread(where, pod, "sidecar"), spread(where, pod)) == ([0], [1])
    assert spread(where, pod, "init") == [0, 1]


@pytest.mark.parametrize("policy", Policy)
def test_an_init_container_uses_the_card_of_the_app(policy: Policy) -> None:
    """Check that the init container uses the app's card although another one fits better or carries less."""
    where = capacity(card(0, free_mib=500), card(1, free_mib=1000), card(2))
    pod = request(share("init", 400, role=Role.INIT), share("a", 800))
    assert taken(where, pod, policy, "init") == taken(where, pod, policy)


def test_a_card_that_is_taken_in_part_anyway_is_preferred_too() -> None:
    where = capacity(card(0, free_mib=500), card(1))
    pod = request(share("init", 400, 50, role=Role.INIT), share("a", 800, 10))
    assert binpack(where, pod, "init") == binpack(where, pod) == [1]


def test_a_card_of_the_pod_that_needs_no_more_memory_is_preferred() -> None:
    where = capacity(card(0, free_mib=900), card(1, free_mib=1000))
    pod = request(share("init", 400, 50, role=Role.INIT), share("a", 800, 10), share("b", 400, 60))
    assert (binpack(where, pod), binpack(where, pod, "b")) == ([0], [1])
    assert binpack(where, pod, "init") == [1]


@pytest.mark.parametrize("policy", Policy)
def test_a_share_goes_where_the_pod_has_the_whole_card_at_another_time(policy: Policy) -> None:
    where = capacity(card(0, free_mib=500), card(1), card(2))
    pod = request(whole("init", role=Role.INIT), share("a", 400))
    assert taken(where, pod, policy) == taken(where, pod, policy, "init")
