"""Find the cards of a node on which a pod's sharing labels, and those of the pods with shares there, allow its shares.

Take a node's free capacity (`NodeCapacity`), the labels of a request, and a fit without regard to labels. Return a Placement
that satisfies the rules of assignment/sharing.py, or a reason. The reason concerns labels only if the pod would fit without
them.

For the inner fit, a card that the labels exclude has nothing free for shares: the search remains exact, over fewer cards. A pod
whose affinity group has no card yet starts the group on one card. If the inner fit would put the pod's shares on several cards,
each card is tried as the only one, in the order of the policy. Whole cards are not restricted by labels.

A `NodeCapacity` is one node: scheduler.py checks whether the affinity group is on another node.
"""

from collections.abc import Callable
from dataclasses import replace

from central.assignment.sharing import AffinityGroup, groups_of
from central.fit.model import Missing, NoFit, Placement
from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import Policy, Sharing
from lading.vocabulary import GpuUuid

Fit = Callable[[NodeCapacity], Placement | NoFit]

_GROUP_FULL = NoFit(missing=Missing.GROUP_FULL)
_KEPT_OFF = NoFit(missing=Missing.KEPT_OFF)


def fit_among_sharers(capacity: NodeCapacity, sharing: Sharing | None, policy: Policy, fit: Fit) -> Placement | NoFit:
    """Fit the pod beside the pods that already share cards. `policy` is the one that applies to the request."""
    if sharing is None and not any(card.sharers for card in capacity.cards):
        return fit(capacity)
    found = _fit_by_labels(capacity, sharing, policy, fit)
    if isinstance(found, Placement) or found.missing.undecided:
        return found
    without_labels = fit(capacity)
    if isinstance(without_labels, NoFit):
        return without_labels
    return _GROUP_FULL if group_cards(capacity, sharing) else _KEPT_OFF


def group_cards(capacity: NodeCapacity, sharing: Sharing | None) -> tuple[CardCapacity, ...]:
    """Return the cards of this node on which the pod's affinity group has shares."""
    if sharing is None or not sharing.affinity:
        return ()
    group = AffinityGroup(sharing.namespace, sharing.affinity)
    return tuple(card for card in capacity.cards if any(group in groups_of(labels) for labels in card.sharers))


def is_open(card: CardCapacity, sharing: Sharing | None) -> bool:
    """Return whether the labels allow the pod to share the card with the pods on it."""
    return card.admits(() if sharing is None else (sharing,))


def _fit_by_labels(capacity: NodeCapacity, sharing: Sharing | None, policy: Policy, fit: Fit) -> Placement | NoFit:
    its = {card.gpu.uuid for card in group_cards(capacity, sharing)}
    # An affinity group on two cards is an error (a second leader, a forged assignment): such a group gets no more pods.
    opened = {card.gpu.uuid for card in capacity.cards if is_open(card, sharing) and (not its or its == {card.gpu.uuid})}
    found = fit(with_shares_on(capacity, opened))
    if sharing is None or not sharing.affinity or isinstance(found, NoFit) or len(_shared(found)) <= 1:
        return found
    ended = None
    for card in sorted(capacity.cards, key=lambda card: _order(card, policy)):
        if card.gpu.uuid in opened and card.free_mib:
            on_card = fit(with_shares_on(capacity, {card.gpu.uuid}))
            if isinstance(on_card, Placement):
                return on_card
            ended = on_card if on_card.missing.undecided else ended
    return ended or _KEPT_OFF


def with_shares_on(capacity: NodeCapacity, opened: set[GpuUuid]) -> NodeCapacity:
    """Return the node's free capacity with shares allowed on these cards only."""
    if len(opened) == len(capacity.cards):
        return capacity
    cards = (card if card.gpu.uuid in opened else replace(card, free_mib=0, free_core=0) for card in capacity.cards)
    return replace(capacity, cards=tuple(cards))


def _shared(placement: Placement) -> list[GpuUuid]:
    return [uuid for uuid, part in placement.taken.gpus.items() if part.sharing]


def _order(card: CardCapacity, policy: Policy) -> tuple[int, ...]:
    """Return the sort key of the card. Ties go to the lowest address, because a `NodeCapacity` has its cards in that order."""
    return (card.containers, -card.free_mib) if policy is Policy.SPREAD else (card.free_mib, card.free_core)
