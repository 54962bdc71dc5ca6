"""Find the cards of a node that a pod's labels, and those of the pods that have shares there, leave to it.

It takes a room, the labels of a request, and a fit that knows nothing of labels. It returns a Placement that breaks none of the
rules of assignment/sharing.py; or what is missing, which is a matter of labels only where the pod would fit without them.

A card that the labels close has nothing free for shares, as far as the fit can see: so it is the fit's own search, exact as it
is, over fewer cards. A pod whose affinity group has no card yet opens one; where the fit would put its shares on several, each
card is tried as the only one, in the order in which the policy would fill them. Whole cards are not concerned.

On which other node the group may be is not looked at here: a room is one node (scheduler.py).
"""

from collections.abc import Callable
from dataclasses import replace

from central.assignment.sharing import Group, groups_of
from central.fit.model import Missing, NoFit, Placement
from central.ledger.model import CardRoom, NodeRoom
from central.request.model import Policy, Sharing
from lading.vocabulary import GpuUuid

Fit = Callable[[NodeRoom], Placement | NoFit]

_GROUP_FULL = NoFit(missing=Missing.GROUP_FULL)
_KEPT_OFF = NoFit(missing=Missing.KEPT_OFF)


def fit_among_sharers(room: NodeRoom, sharing: Sharing | None, policy: Policy, fit: Fit) -> Placement | NoFit:
    """Fit the pod among the sharers. `policy` is the one that applies to the request."""
    if sharing is None and not any(card.sharers for card in room.cards):
        return fit(room)
    found = _fit_by_labels(room, sharing, policy, fit)
    if isinstance(found, Placement) or found.missing.undecided:
        return found
    without_labels = fit(room)
    if isinstance(without_labels, NoFit):
        return without_labels
    return _GROUP_FULL if group_cards(room, sharing) else _KEPT_OFF


def group_cards(room: NodeRoom, sharing: Sharing | None) -> tuple[CardRoom, ...]:
    """Return the cards of this node that the pod's affinity group has."""
    if sharing is None or not sharing.affinity:
        return ()
    group = Group(sharing.namespace, sharing.affinity)
    return tuple(card for card in room.cards if any(group in groups_of(labels) for labels in card.sharers))


def is_open(card: CardRoom, sharing: Sharing | None) -> bool:
    """Return whether the pod may be together with the pods that share the card."""
    return card.admits(() if sharing is None else (sharing,))


def _fit_by_labels(room: NodeRoom, sharing: Sharing | None, policy: Policy, fit: Fit) -> Placement | NoFit:
    its = {card.gpu.uuid for card in group_cards(room, sharing)}
    # One group on two cards is an error (a second leader, a forged assignment): there it takes no more pods.
    opened = {card.gpu.uuid for card in room.cards if is_open(card, sharing) and (not its or its == {card.gpu.uuid})}
    found = fit(with_shares_on(room, opened))
    if sharing is None or not sharing.affinity or isinstance(found, NoFit) or len(_shared(found)) <= 1:
        return found
    ended = None
    for card in sorted(room.cards, key=lambda card: _order(card, policy)):
        if card.gpu.uuid in opened and card.free_mib:
            on_card = fit(with_shares_on(room, {card.gpu.uuid}))
            if isinstance(on_card, Placement):
                return on_card
            ended = on_card if on_card.missing.undecided else ended
    return ended or _KEPT_OFF


def with_shares_on(room: NodeRoom, opened: set[GpuUuid]) -> NodeRoom:
    """Return the room with shares on these cards alone."""
    if len(opened) == len(room.cards):
        return room
    cards = (card if card.gpu.uuid in opened else replace(card, free_mib=0, free_core=0) for card in room.cards)
    return replace(room, cards=tuple(cards))


def _shared(placement: Placement) -> list[GpuUuid]:
    return [uuid for uuid, part in placement.taken.gpus.items() if part.sharing]


def _order(card: CardRoom, policy: Policy) -> tuple[int, ...]:
    """Return the sort key of the card. Ties go to the lowest address: rooms have their cards in that order."""
    return (card.containers, -card.free_mib) if policy is Policy.SPREAD else (card.free_mib, card.free_core)
