"""Test isolations on one node: which cards remain, what the assignment has, and why there is none."""

from dataclasses import replace

import pytest

from central.ledger.model import CardCapacity
from central.request.model import ContainerRequest, DeviceRequest, Policy, Role, Share, Sharing
from central.search.demand import Limits
from central.search.explain import explain
from central.search.placement import MAY_FIT_LATER, Missing
from lading.devices.isolation import IsolationName, most_containers
from tests.fakes.capacities import CARD_MIB, capacity, card, gpu_uuid, held, request, share, whole
from tests.unit.central.search.test_fit import place
from tests.unit.central.search.test_sharing import cards

NONE, TOKENS, MPS = IsolationName.NONE, IsolationName.TOKENS, IsolationName.MPS
HALF = CARD_MIB // 2
MOST_BY_TURNS = most_containers(TOKENS, 1000)


def shared(number: int, *isolations: str, free_mib: int = HALF) -> CardCapacity:
    return card(number, free_mib=free_mib, isolations=isolations)


def one(isolation: IsolationName | None = None, mib: int = 1000) -> DeviceRequest:
    return request(share("a", mib), isolation=isolation)


@pytest.mark.parametrize(
    ("offered", "requested", "on", "joins"),
    [
        ((), None, (), True),
        ((), None, (TOKENS,), False),  # granted before the node's configuration changed
        ((), NONE, (), True),
        ((NONE, TOKENS), None, (), True),
        ((NONE, TOKENS), None, (TOKENS,), False),
        ((NONE, TOKENS), TOKENS, (TOKENS,), True),
        *(((NONE, TOKENS), TOKENS, (), False), ((NONE, TOKENS), NONE, (TOKENS,), False)),
        *(((TOKENS, NONE), None, (), False), ((TOKENS, NONE), None, (TOKENS,), True), ((TOKENS, NONE), NONE, (), True)),
        ((TOKENS,), None, (TOKENS,), True),
        ((NONE, TOKENS), TOKENS, (NONE, TOKENS), False),
        ((NONE, TOKENS), NONE, (NONE, TOKENS), False),
        ((NONE, TOKENS, MPS), TOKENS, (MPS,), False),
    ],
)
@pytest.mark.parametrize("policy", Policy)
def test_a_share_joins_shares_with_its_isolation(
    offered: tuple[IsolationName, ...], requested: IsolationName | None, on: tuple[str, ...], joins: bool, policy: Policy
) -> None:
    alone = capacity(shared(0, *on), isolations=offered)
    assert cards(alone, one(requested), policy) == ({gpu_uuid(0)} if joins else Missing.OTHER_ISOLATION)
    beside = capacity(shared(0, *on), card(1), isolations=offered)
    assert cards(beside, one(requested, HALF + 1), policy) == {gpu_uuid(1)}
    if not joins:
        assert cards(beside, one(requested), policy) == {gpu_uuid(1)}


@pytest.mark.parametrize(
    ("offered", "requested"), [((), TOKENS), ((NONE, TOKENS), MPS), ((TOKENS,), NONE), ((TOKENS,), IsolationName.HAMI_CORE)]
)
def test_a_node_that_does_not_offer_it_never_fits(offered: tuple[IsolationName, ...], requested: IsolationName) -> None:
    where = capacity(card(0), isolations=offered)
    assert cards(where, one(requested)) is Missing.NO_ISOLATION
    assert Missing.NO_ISOLATION.shown not in MAY_FIT_LATER
    assert Missing.OTHER_ISOLATION.shown in MAY_FIT_LATER
    text = explain(where, one(requested), Missing.NO_ISOLATION, policy=Policy.BINPACK)
    assert all(name in text for name in (requested, *(offered or (NONE,))))


def test_a_pod_that_fits_with_no_isolation_gets_the_other_reason() -> None:
    offered = (NONE, TOKENS)
    assert cards(capacity(shared(0, free_mib=500), isolations=offered), one(TOKENS)) is Missing.NO_CARD_WITH_ROOM
    assert cards(capacity(held(0), isolations=offered), one(TOKENS)) is Missing.NO_CARD_WITH_ROOM
    assert cards(capacity(shared(0), isolations=offered, reachable=False), one(MPS)) is Missing.UNREACHABLE
    assert cards(capacity(shared(0, TOKENS), isolations=offered), request(whole("a"))) is Missing.TOO_FEW_FREE_GPUS


def test_labels_and_isolation_each_have_their_reason() -> None:
    def labelled(isolation: IsolationName | None) -> DeviceRequest:
        return request(share("a", 1000), sharing=Sharing(namespace="n", exclusion="x"), isolation=isolation)

    where = capacity(shared(0, TOKENS), isolations=(NONE, TOKENS))
    assert cards(where, labelled(TOKENS)) is Missing.KEPT_OFF
    assert cards(where, labelled(NONE)) is Missing.KEPT_OFF
    with_its = replace(where, cards=(replace(where.cards[0], sharers=((Sharing(namespace="n", exclusion="x"),),)),))
    assert cards(with_its, labelled(TOKENS)) == {gpu_uuid(0)}
    assert cards(with_its, labelled(NONE)) is Missing.OTHER_ISOLATION


@pytest.mark.parametrize(
    ("offered", "requested", "written", "taken"),
    [
        ((), None, None, ()),
        ((), NONE, None, ()),
        ((NONE, TOKENS), None, NONE, ()),
        ((NONE, TOKENS), TOKENS, TOKENS, (TOKENS,)),
        ((TOKENS, NONE), None, TOKENS, (TOKENS,)),
        ((TOKENS, NONE), NONE, NONE, ()),
    ],
)
@pytest.mark.parametrize("free", [1, 2])
def test_the_assignment_names_it_where_the_node_has_a_choice(
    offered: tuple[IsolationName, ...],
    requested: IsolationName | None,
    written: IsolationName | None,
    taken: tuple[str, ...],
    free: int,
) -> None:
    limited = ContainerRequest(name="b", share=Share(core_percent=10, core_limit_percent=60))
    cards = [card(number) for number in range(free)]
    result = place(capacity(*cards, isolations=offered), request(share("a", 1000), limited, isolation=requested))
    gpus = {name: container.gpus[0] for name, container in result.containers.items()}
    assert {name: (gpu.isolation, gpu.core_limit_percent) for name, gpu in gpus.items()} == {
        "a": (written, None),
        "b": (written, 60),
    }
    assert {part.isolation for part in result.taken.gpus.values()} == {taken}


def test_a_whole_card_has_none() -> None:
    result = place(capacity(card(0), card(1), isolations=(TOKENS,)), request(whole("a"), share("b", 10)))
    assert result.containers["a"].gpus[0].isolation is None
    assert sorted(part.isolation for part in result.taken.gpus.values()) == [(), (TOKENS,)]


def test_a_card_that_is_divided_by_count_has_the_nodes_default() -> None:
    limits = Limits(spread_containers_per_card=3)
    result = place(capacity(shared(0), card(1), isolations=(TOKENS,)), request(whole("a")), limits=limits, policy=Policy.SPREAD)
    assert [(gpu.uuid, gpu.isolation) for gpu in result.containers["a"].gpus] == [(gpu_uuid(1), TOKENS)]


def test_no_more_containers_than_can_take_turns_share_a_card() -> None:
    crowd = [share(f"c{number}", 10) for number in range(MOST_BY_TURNS + 1)]
    for count, isolation, number in ((MOST_BY_TURNS, TOKENS, 1), (MOST_BY_TURNS + 1, TOKENS, 2), (MOST_BY_TURNS + 1, NONE, 1)):
        where = capacity(card(0), card(1), isolations=(NONE, TOKENS))
        assert len(place(where, request(*crowd[:count], isolation=isolation)).taken.gpus) == number
    beside = capacity(card(0, free_mib=HALF, containers=15, isolations=(TOKENS,)), isolations=(NONE, TOKENS))
    assert cards(beside, request(*crowd[:1], isolation=TOKENS)) == {gpu_uuid(0)}
    assert cards(beside, request(*crowd[:2], isolation=TOKENS)) is Missing.SHARES_DO_NOT_FIT


def test_an_init_container_may_have_whole_what_a_share_has_later() -> None:
    pod = request(whole("prepare", role=Role.INIT), share("a", 1000), isolation=TOKENS)
    assert cards(capacity(shared(0), card(1), isolations=(NONE, TOKENS)), pod) == {gpu_uuid(1)}


@pytest.mark.parametrize(
    ("offered", "requested", "named"),
    [
        ((NONE, TOKENS), TOKENS, ["is tokens;", "of 2 GPUs", "2 are"]),
        ((TOKENS, NONE), None, ["is tokens, the default of the node;", "of 2 GPUs", "2 are"]),
    ],
)
def test_the_words_name_the_isolation_and_count_the_cards(
    offered: tuple[IsolationName, ...], requested: IsolationName | None, named: list[str]
) -> None:
    where = capacity(shared(0), shared(1), held(2), isolations=offered)
    text = explain(where, one(requested), Missing.OTHER_ISOLATION, policy=Policy.BINPACK)
    assert [part for part in named if part not in text] == []


def test_mps_gives_no_container_shares_of_several_cards() -> None:
    two = request(share("a", 1000, cards=2))
    by_mps, by_turns = (capacity(card(0), card(1), isolations=(name, NONE)) for name in (MPS, TOKENS))
    assert cards(by_mps, two) is Missing.NO_ISOLATION
    assert "several cards" in explain(by_mps, two, Missing.NO_ISOLATION, policy=Policy.BINPACK)
    assert cards(by_turns, two) == {gpu_uuid(0), gpu_uuid(1)}
    assert cards(by_mps, replace(two, isolation=NONE)) == {gpu_uuid(0), gpu_uuid(1)}
    assert cards(by_mps, request(share("a", 1000), share("b", 1000))) != Missing.NO_ISOLATION
