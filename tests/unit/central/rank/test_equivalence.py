"""Test which nodes are judged once: those of one equivalence class."""

from itertools import combinations

import pytest

from central.ledger.model import NodeCapacity
from central.rank.equivalence import Equivalence, class_by_cards, class_by_devices, class_in_any_order, equivalence_for
from central.rank.score import Score, score_placed
from central.rank.verdicts import Verdicts
from central.request.model import NO_CPU_MEMORY, DeviceRequest, Policy, RdmaPolicy, Scope
from central.search.demand import read_demand
from central.search.fit import fit
from central.search.placement import Missing, Placement
from tests.fakes.capacities import capacity, card, eight_gpus, rdma, request, share, vf, whole
from tests.unit.central.rank.test_searched import judge, judged


def free(*cards: int, vfs: tuple[int, ...] = tuple(range(16)), name: str = "n1") -> NodeCapacity:
    """Return a node with eight cards, two for each switch, and sixteen VFs, four for each switch."""
    return eight_gpus(held_cards={*range(8)} - {*cards}, held_vfs={*range(16)} - {*vfs}, name=name)


@pytest.mark.parametrize(
    ("requested", "class_of"),
    [
        (request(whole("c")), class_in_any_order),
        (request(share("c", 100)), class_in_any_order),
        (request(rdma("c", 4)), class_in_any_order),
        (request(whole("c"), rdma("d")), class_in_any_order),
        (request(whole("c", 2)), class_by_cards),
        (request(whole("c", vfs=1)), class_by_devices),
        (request(whole("c"), scope=Scope.NUMA), class_by_cards),
        (request(rdma("c"), rdma_policy=RdmaPolicy.PER_PF), class_by_devices),
    ],
)
def test_the_equivalence_of_a_request_includes_places_if_they_matter(requested: DeviceRequest, class_of: Equivalence) -> None:
    assert equivalence_for(read_demand(requested, Policy.BINPACK)) is class_of


def test_classes_differ_by_the_places_of_free_devices() -> None:
    assert class_in_any_order(free(0, 1)) == class_in_any_order(free(0, 2))
    for class_of in (class_by_cards, class_by_devices):
        assert class_of(free(0, 1)) != class_of(free(0, 2))
        assert class_of(free(0, 1)) == class_of(free(0, 1, name="n2"))
    assert class_by_cards(free(0, vfs=(0,))) == class_by_cards(free(0, vfs=(4,)))
    assert class_by_devices(free(0, vfs=(0,))) != class_by_devices(free(0, vfs=(4,)))
    assert class_by_devices(capacity(card(0), vfs=[vf(0)])) != class_by_devices(capacity(card(0, switch=None), vfs=[vf(0)]))


def test_capacities_of_one_class_have_one_verdict_and_score() -> None:
    asks = (request(whole("c", 2), scope=Scope.SWITCH), request(whole("c", 2)), request(whole("c", vfs=1)))
    capacities = [free(*cards, vfs=vfs) for cards in combinations(range(5), 2) for vfs in ((0,), (4,), (0, 4))]
    for requested in asks:
        verdicts: dict[object, set[Score | Missing]] = {}
        for one in capacities:
            verdicts.setdefault(equivalence_for(read_demand(requested, Policy.BINPACK))(one), set()).add(judge(one, requested))
        assert all(len(verdict) == 1 for verdict in verdicts.values())


def test_cached_verdicts_distinguish_nodes_by_what_the_request_needs() -> None:
    capacities = [free(0, 2, name="apart"), free(0, 1, name="together"), free(4, 5, name="elsewhere")]

    def since(version: int) -> tuple[list[tuple[str, NodeCapacity | None]], int]:
        return ([(one.name, one) for one in capacities] if version < 1 else []), 1

    verdicts = Verdicts(since, lambda version: ([], version), policy=Policy.BINPACK)
    within = judged(verdicts, request(whole("c", 2), scope=Scope.SWITCH))
    assert {name for name, reason in within.reasons.items() if not reason} == {"together", "elsewhere"}
    assert judged(verdicts, request(whole("c", 2))).best(NO_CPU_MEMORY, [one.name for one in capacities]) == "elsewhere"
    assert judged(verdicts, request(whole("c"))).best(NO_CPU_MEMORY, [one.name for one in capacities]) == "apart"


def test_the_nearest_devices_come_first_under_every_policy() -> None:
    requested = request(whole("c", vfs=1))
    near, far = free(0, vfs=(0, 1)), free(0, 1, 2, vfs=(12,))
    for policy in Policy:
        scores = []
        for one in (near, far):
            placed = fit(one, requested, policy=policy)
            assert isinstance(placed, Placement)
            scores.append(score_placed(one, requested, placed, policy=policy))
        assert scores[0] > scores[1]
