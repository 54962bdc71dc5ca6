"""Which cards are preferred, of those that all would do: an order, never a refusal.

What the pod takes anyway at another time comes first, under either policy. Then:

    binpack  a share goes where least is free (gpushare's best fit). Whole cards come from as few switches as can be, and of the
             switches that would do from the one with the fewest free cards, so that full switches stay for those who want them.
    spread   the card with the fewest containers. Several cards: that one, then those with the best link to it, NVLink before
             PCIe, and of equally linked ones the least loaded (the Redis design, seed 002; its load is counted from pods).

The lowest PCI address decides what is still equal.
"""

from collections.abc import Sequence

from central.ask.model import Policy
from central.fit.cards import Card, Prefer
from central.fit.demand import CardsWanted
from central.fit.topology import link, switch_of

_Address = tuple[int, str]


def preference(policy: Policy) -> Prefer:
    match policy:
        case Policy.BINPACK:
            return _packed
        case Policy.SPREAD:
            return _spread


def _packed(cards: Sequence[Card], wanted: CardsWanted, count: int) -> Sequence[Card]:
    if count == 1 and not wanted.whole:
        return [min(cards, key=lambda card: _best_fit(card, wanted))]
    if not wanted.whole:
        return sorted(cards, key=lambda card: _best_fit(card, wanted))[:count]
    by_need: tuple[list[Card], list[Card], list[Card]] = ([], [], [])
    for card in cards:
        by_need[card.beyond(wanted)].append(card)
    picked: list[Card] = []
    for alike in by_need:
        if alike and len(picked) < count:
            picked += _by_switch(alike, count - len(picked))
    return picked


def _best_fit(card: Card, wanted: CardsWanted) -> tuple[int, int, int, _Address]:
    mib = max(card.mib[phase] for phase in wanted.phases)
    core = max(card.core[phase] for phase in wanted.phases)
    return card.beyond(wanted), card.free_mib - mib, card.free_core - core, card.address


def _by_switch(cards: Sequence[Card], count: int) -> list[Card]:
    """All cards, if there are fewer."""
    cards = sorted(cards, key=_address)
    if len(cards) <= count:
        return cards
    switches: dict[tuple[str, ...], list[Card]] = {}
    for card in cards:
        switches.setdefault(switch_of(card.gpu), []).append(card)
    heaps = sorted(switches.values(), key=len)  # stable: equal ones stay in the order of their lowest address
    picked: list[Card] = []
    while len(picked) < count:
        rest = count - len(picked)
        enough = next((heap for heap in heaps if len(heap) >= rest), None)
        if enough is not None:
            return picked + enough[:rest]
        largest = max(heaps, key=len)  # the first of them
        picked += largest
        heaps.remove(largest)
    return picked


def _address(card: Card) -> _Address:
    return card.address


def _spread(cards: Sequence[Card], wanted: CardsWanted, count: int) -> Sequence[Card]:
    first = min(cards, key=lambda card: (card.beyond(wanted), card.containers, -card.free_mib, card.address))
    if count == 1:
        return [first]
    links = {card.address: link(first.gpu, card.gpu) for card in cards if card is not first}
    others = [card for card in cards if card is not first]
    others.sort(key=lambda card: (card.containers, card.address))
    others.sort(key=lambda card: links[card.address], reverse=True)  # stable
    others.sort(key=lambda card: card.beyond(wanted))
    return [first, *others[: count - 1]]
