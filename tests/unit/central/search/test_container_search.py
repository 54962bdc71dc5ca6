from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from central.ledger.model import CardCapacity
from central.request.model import DeviceRequest, Policy, Role
from central.search.cards import Card
from central.search.container_search import SearchDevices, SearchEndedError, places_of, search_containers
from central.search.demand import read_demand
from central.search.topology import lay_out
from central.search.vfs import FreeVfs
from tests.fakes.capacities import capacity, card, request, share, whole


def choose(
    pod: DeviceRequest, *cards: CardCapacity, policy: Policy = Policy.BINPACK, steps: int = 1000
) -> Mapping[str, Sequence[int]] | None:
    """Return the chosen card numbers by container."""
    demand = read_demand(pod, policy)
    numbers = {one.gpu.uuid: n for n, one in enumerate(cards)}
    layout = lay_out(capacity(*cards), vfs=False)
    given = [Card(cards[index], demand.phases, number) for number, index in enumerate(layout.cards)]
    containers = search_containers(
        SearchDevices(layout.topology, given, 0, FreeVfs(), places_of(layout.topology, demand)), demand, policy, steps=steps
    )
    if containers is None:
        return None
    return {one.wanted.container: [numbers[card.gpu.uuid] for card in one.cards] for one in containers}


def test_a_choice_that_leaves_no_room_for_the_next_is_taken_back() -> None:
    """Check that best fit is corrected: it puts the 5 on the card with 6, where only the 6 fits beside the 4."""
    pod = request(share("a", 5), share("b", 4), share("c", 6))
    assert choose(pod, card(0, usable_mib=9), card(1, usable_mib=6)) == {"c": [1], "a": [0], "b": [0]}
    pod = request(share("a", 6), share("b", 4), share("c", 3), share("d", 3))
    assert choose(pod, card(0, usable_mib=6), card(1, usable_mib=10)) is not None


def test_a_whole_card_is_not_the_only_one_that_is_large_enough_for_a_share() -> None:
    pod = request(whole("a"), share("b", 10))
    assert choose(pod, card(0, usable_mib=10), card(1, usable_mib=8)) == {"a": [1], "b": [0]}


def test_the_choice_of_the_whole_card_is_part_of_a_tried_state() -> None:
    """Use a large card: if it is taken whole, the second share fails, not the first."""
    pod = request(whole("a"), share("b", 6), share("c", 4))
    assert choose(pod, card(0, usable_mib=10), card(1, usable_mib=8)) == {"a": [1], "b": [0], "c": [0]}


def test_several_whole_cards_leave_the_large_one() -> None:
    pod = request(whole("a", 2), share("b", 10))
    assert choose(pod, card(0, usable_mib=8), card(1, usable_mib=10), card(2, usable_mib=8)) == {"a": [0, 2], "b": [1]}


def test_a_sidecar_leaves_room_for_the_init_container_that_runs_beside_it() -> None:
    pod = request(share("proxy", 6, role=Role.SIDECAR), share("load", 5, 100, role=Role.INIT), share("main", 1))
    cards = card(0, usable_mib=6), card(1, usable_mib=8, free_core=90), card(2, usable_mib=5)
    assert choose(pod, *cards) == {"proxy": [0], "load": [2], "main": [2]}


def test_alike_cards_are_one_to_the_search() -> None:
    """Search sixteen equal cards for eight shares of more than half a card and one whole card too many: without equal cards
    there were 16^8 ways."""
    pod = request(*(share(f"s{n}", 6 + n % 2) for n in range(8)), whole("w", 9))
    assert choose(pod, *(card(n, usable_mib=10) for n in range(16)), steps=20) is None


@pytest.mark.parametrize(
    ("cards", "shares", "policy"),
    [
        ([card(0, usable_mib=10), card(1, usable_mib=10)], [(6, 0), (5, 0), (4, 0), (3, 0), (2, 0)], Policy.SPREAD),
        ([card(0), card(1)], [(1, 60), (1, 50), (1, 30), (1, 25), (1, 20), (1, 15)], Policy.SPREAD),
        (
            [card(0, usable_mib=100, free_mib=50), card(1, usable_mib=60, free_mib=50)],
            [(None, 50), (50, 0), (20, 0)],
            Policy.BINPACK,
        ),
        ([card(0, free_mib=6), card(1, free_mib=5)], [(4, 0), (3, 0), (3, 0)], Policy.SPREAD),
        ([card(0, free_core=60), card(1, free_core=50)], [(1, 40), (1, 30), (1, 30)], Policy.SPREAD),
    ],
    ids=["memory", "compute", "size", "free memory", "free compute"],
)
def test_cards_that_differ_in_one_thing_are_not_alike(
    cards: Sequence[CardCapacity], shares: Sequence[tuple[int | None, int]], policy: Policy
) -> None:
    """Use cards that differ in one property each: only one choice, which is not the preferred one, fills them."""
    pod = request(*(share(str(n), mib, core or None) for n, (mib, core) in enumerate(shares)))
    assert choose(pod, *cards, policy=policy) is not None


def test_a_state_that_failed_is_not_searched_again() -> None:
    """Place nine equal shares on four cards of two each: there are 2520 orders in which to fail."""
    pod = request(*(share(str(n), 5) for n in range(9)))
    assert choose(pod, *(card(n, usable_mib=10 + n) for n in range(4)), steps=400) is None


def test_a_search_without_end_is_ended() -> None:
    """Place twenty different shares that would fill eight cards if they could be divided."""
    sizes = [1000 + 97 * n * n % 1013 for n in range(20)]
    pod = request(*(share(f"s{n}", size) for n, size in enumerate(sizes)))
    cards = [card(n, usable_mib=sum(sizes) // 8 + 1) for n in range(8)]
    with pytest.raises(SearchEndedError):
        choose(pod, *cards, steps=50)


def test_a_pods_own_containers_count_against_the_number_of_sharers() -> None:
    def limited(number: int) -> CardCapacity:
        one = card(number)
        return replace(one, gpu=msgspec.structs.replace(one.gpu, max_shares=2))

    pod = request(share("a", 1), share("b", 1), share("c", 1))
    assert choose(pod, limited(0)) is None
    given = choose(pod, limited(0), limited(1))
    assert given is not None
    assert sorted(numbers[0] for numbers in given.values()) in ([0, 0, 1], [0, 1, 1])
