"""The one place where devices are chosen: a room and a demand → the devices of every container, or what is missing.

Cards first, then VFs beside them. Enters: a room that `find_shortage` let through. What it never takes: a card that is not
usable, of another model, or in MIG mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from central.ask.model import Policy
from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.fit.cards import Card, Chosen, SearchEndedError, choose_cards
from central.fit.demand import CardsWanted, Demand
from central.fit.model import Missing
from central.fit.prefer import preference
from central.fit.shortage import asked_cards
from central.fit.vfs import choose_vfs
from central.ledger.model import CardRoom, NodeRoom


def choose(room: NodeRoom, demand: Demand, *, policy: Policy, steps: int) -> Mapping[str, PlacedContainer] | Missing:
    """By container, in the order of the ask. `steps` bounds the search for cards."""
    chosen: Mapping[str, Chosen] = {}
    if demand.cards:
        cards = asked_cards(room, demand)
        try:
            found = choose_cards(_given(cards, demand), demand.cards, preference(policy), steps=steps)
        except SearchEndedError:
            return Missing.SEARCH_ENDED
        if found is None:
            return _why_not_together(cards, demand, policy, steps)
        chosen = {name: Chosen(one.wanted, sorted(one.cards, key=_address)) for name, one in found.items()}
    gpus = {name: [card.gpu for card in one.cards] for name, one in chosen.items()}
    vfs = choose_vfs(room, demand, gpus) if demand.vfs else {}
    return {name: _placed(chosen.get(name), vfs.get(name, ())) for name, _ in demand.roles}


def _address(card: Card) -> tuple[int, str]:
    return card.address


def _given(cards: Sequence[CardRoom], demand: Demand) -> list[Card]:
    return [Card(card, demand.phases) for card in cards if card.usable]


def _placed(chosen: Chosen | None, vfs: tuple[PlacedVf, ...]) -> PlacedContainer:
    if chosen is None:
        return PlacedContainer(vfs=vfs)
    return PlacedContainer(gpus=tuple(_placed_gpu(card, chosen.wanted) for card in chosen.cards), vfs=vfs)


def _placed_gpu(card: Card, wanted: CardsWanted) -> PlacedGpu:
    gpu = card.gpu
    if wanted.whole:
        return PlacedGpu(uuid=gpu.uuid, bdf=gpu.bdf)
    memory_mib = wanted.mib_of(card.usable_mib)
    return PlacedGpu(uuid=gpu.uuid, bdf=gpu.bdf, memory_mib=memory_mib, core_percent=wanted.core_percent)


def _why_not_together(cards: Sequence[CardRoom], demand: Demand, policy: Policy, steps: int) -> Missing:
    """Each container would fit alone: whether they would together if nobody else held anything, and if nothing were wrong."""
    usable = [_emptied(card) for card in cards if card.usable]
    if _may_fit(usable, demand, policy, steps):
        return Missing.SHARES_DO_NOT_FIT
    if len(usable) < len(cards) and _may_fit([_emptied(card) for card in cards], demand, policy, steps):
        return Missing.UNHEALTHY
    return Missing.NODE_TOO_SMALL


def _emptied(card: CardRoom) -> CardRoom:
    return replace(card, usable=True, pods=0, containers=0, free_mib=card.gpu.usable_mib, free_core=100)


def _may_fit(cards: Sequence[CardRoom], demand: Demand, policy: Policy, steps: int) -> bool:
    try:
        return choose_cards(_given(cards, demand), demand.cards, preference(policy), steps=steps) is not None
    except SearchEndedError:
        return True
