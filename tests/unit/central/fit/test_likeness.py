"""Which rooms are judged once: those that are alike for the asks that they are alike for."""

from itertools import combinations

import pytest

from central.ask.model import Ask, Policy, RdmaPolicy, Scope
from central.fit.demand import read_demand
from central.fit.fit import fit
from central.fit.likeness import Likeness, likeness, likeness_for, likeness_of_cards, likeness_of_devices
from central.fit.model import Missing, NoFit, Placement
from central.fit.score import Score, score_placed
from central.fit.standing import Standing, Standings
from central.ledger.model import NodeRoom
from central.loop.steps import exhaust
from tests.fakes.rooms import ask, card, eight_gpus, rdma, room, share, vf, whole


def free(*cards: int, vfs: tuple[int, ...] = tuple(range(16)), name: str = "n1") -> NodeRoom:
    """Of eight cards two to a switch, and sixteen VFs four to a switch."""
    return eight_gpus(held_cards={*range(8)} - {*cards}, held_vfs={*range(16)} - {*vfs}, name=name)


def judge(one: NodeRoom, asked: Ask, brief: bool = False) -> Score | Missing:
    found = fit(one, asked, policy=Policy.BINPACK)
    return found.missing if isinstance(found, NoFit) else score_placed(one, asked, found, policy=Policy.BINPACK)


@pytest.mark.parametrize(
    ("asked", "alike"),
    [
        (ask(whole("c")), likeness),
        (ask(share("c", 100)), likeness),
        (ask(rdma("c", 4)), likeness),
        (ask(whole("c"), rdma("d")), likeness),
        (ask(whole("c", 2)), likeness_of_cards),
        (ask(whole("c", vfs=1)), likeness_of_devices),
        (ask(whole("c"), scope=Scope.NUMA), likeness_of_cards),
        (ask(rdma("c"), rdma_policy=RdmaPolicy.PER_PF), likeness_of_devices),
    ],
)
def test_where_devices_sit_matters_to_who_has_several_or_must_have_them_near(asked: Ask, alike: Likeness) -> None:
    assert likeness_for(read_demand(asked, Policy.BINPACK)) is alike


def test_the_same_number_of_cards_elsewhere() -> None:
    assert likeness(free(0, 1)) == likeness(free(0, 2))
    for alike in (likeness_of_cards, likeness_of_devices):
        assert alike(free(0, 1)) != alike(free(0, 2))
        assert alike(free(0, 1)) == alike(free(0, 1, name="n2"))
    assert likeness_of_cards(free(0, vfs=(0,))) == likeness_of_cards(free(0, vfs=(4,)))
    assert likeness_of_devices(free(0, vfs=(0,))) != likeness_of_devices(free(0, vfs=(4,)))
    assert likeness_of_devices(room(card(0), vfs=[vf(0)])) != likeness_of_devices(room(card(0, switch=None), vfs=[vf(0)]))


def test_alike_rooms_have_one_verdict_and_score() -> None:
    asks = (ask(whole("c", 2), scope=Scope.SWITCH), ask(whole("c", 2)), ask(whole("c", vfs=1)))
    rooms = [free(*cards, vfs=vfs) for cards in combinations(range(5), 2) for vfs in ((0,), (4,), (0, 4))]
    for asked in asks:
        verdicts: dict[object, set[Score | Missing]] = {}
        for one in rooms:
            verdicts.setdefault(likeness_for(read_demand(asked, Policy.BINPACK))(one), set()).add(judge(one, asked))
        assert all(len(found) == 1 for found in verdicts.values())


def judged(standings: Standings, asked: Ask) -> Standing:
    standing = standings.of(asked)
    exhaust(standing.judging())
    return standing


def test_a_standing_tells_apart_what_matters_to_its_ask() -> None:
    rooms = [free(0, 2, name="apart"), free(0, 1, name="together"), free(4, 5, name="elsewhere")]

    def since(version: int) -> tuple[list[tuple[str, NodeRoom | None]], int]:
        return ([(one.name, one) for one in rooms] if version < 1 else []), 1

    standings = Standings(judge, since, alike=lambda asked: likeness_for(read_demand(asked, Policy.BINPACK)))
    within = judged(standings, ask(whole("c", 2), scope=Scope.SWITCH))
    assert {name for name, why in within.reasons.items() if not why} == {"together", "elsewhere"}
    assert judged(standings, ask(whole("c", 2))).best([one.name for one in rooms]) == "elsewhere"
    assert judged(standings, ask(whole("c"))).best([one.name for one in rooms]) == "apart"


def test_the_nearest_devices_come_first_and_for_spread_last() -> None:
    asked = ask(whole("c", vfs=1))
    near, far = free(0, vfs=(0, 1)), free(0, 1, 2, vfs=(12,))
    for policy, better in ((Policy.BINPACK, near), (Policy.SPREAD, far)):
        scores = []
        for one in (near, far):
            placed = fit(one, asked, policy=policy)
            assert isinstance(placed, Placement)
            scores.append(score_placed(one, asked, placed, policy=policy))
        assert (scores[0] > scores[1]) is (better is near)
