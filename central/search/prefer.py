"""Order the cards that all suit a share by the policy's preference; never refuse a card.

Cards that the pod uses anyway at another time come first, under any policy. Then:

    binpack  the card with the least free (gpushare's best fit)
    spread   the card with the fewest containers. Several cards: that one, then those with the best link to it, NVLink before
             PCIe, and of equally linked ones the least loaded (the Redis design, seed 002; its load is counted from pods).

The lowest PCI address decides ties. Whole cards have an objective of their own (joint.py), in which a share's worst distance to
its VFs also counts before this order. For one share, the policy fragmentation chooses the card earlier (scores.py).
"""

from collections.abc import Callable, Sequence

from central.request.model import Policy
from central.search.cards import Card
from central.search.demand import Wanted
from central.search.topology import link

Prefer = Callable[[Sequence[Card], Wanted, int], Sequence[Card]]  # the best `int` of cards that all suit, the best first


def preference(policy: Policy) -> Prefer:
    match policy:
        case Policy.BINPACK | Policy.FRAGMENTATION:
            return _packed
        case Policy.SPREAD:
            return _spread


def ranks(policy: Policy, cards: Sequence[Card], wanted: Wanted) -> dict[int, int]:
    """Return the policy's rank of each card, by the card's number: 0 is first. Equal cards have one rank, whatever their
    address."""
    keys = {card.number: _loads(card) if policy is Policy.SPREAD else _left(card, wanted) for card in cards}
    order = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {number: order[key] for number, key in keys.items()}


def _packed(cards: Sequence[Card], wanted: Wanted, count: int) -> Sequence[Card]:
    def key(card: Card) -> tuple[int, tuple[int, int], tuple[int, str]]:
        return card.beyond(wanted), _left(card, wanted), card.address

    return [min(cards, key=key)] if count == 1 else sorted(cards, key=key)[:count]


def _left(card: Card, wanted: Wanted) -> tuple[int, int]:
    mib = max(card.mib[phase] for phase in wanted.phases)
    core = max(card.core[phase] for phase in wanted.phases)
    return card.free_mib - mib, card.free_core - core


def _loads(card: Card) -> tuple[int, int]:
    return card.containers, -card.free_mib


def _spread(cards: Sequence[Card], wanted: Wanted, count: int) -> Sequence[Card]:
    first = min(cards, key=lambda card: (card.beyond(wanted), _loads(card), card.address))
    if count == 1:
        return [first]
    links = {card.address: link(first.gpu, card.gpu) for card in cards}
    others = [card for card in cards if card is not first]
    others.sort(key=lambda card: (card.beyond(wanted), links[card.address], card.containers, card.address))
    return [first, *others[: count - 1]]
