"""List the rules that keep a pod's shares off cards of a node: sharing labels, and isolation.

    labels      the pods on a card allow the pod's labels, and the pod's labels allow them (assignment/sharing.py). An affinity
                group has one card: the group's next pod may use only that card
    isolation   all shares of a card have the same isolation, because one isolation does not know what another allows to run.
                shortage.py has already checked that the node offers the isolation

Take a node's free capacity (`NodeCapacity`), a demand and its sharing labels. Return a filter for each rule that applies on
this node. Whole cards are not restricted. fit.py searches on the cards that all filters leave. If the pod does not fit, it
searches again without one filter after the other, to find the filter that is the reason.

A `NodeCapacity` is one node: scheduler.py checks whether the affinity group is on another node.

Tests: tests/unit/central/test_sharing.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from central.assignment.sharing import AffinityGroup, groups_of
from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import Sharing
from central.search.demand import Demand
from central.search.placement import Missing
from lading.vocabulary import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFilter:
    cards: frozenset[GpuUuid]  # cards that the pod's shares may use
    missing: Missing  # reason if the pod would fit without this filter


def find_filters(capacity: NodeCapacity, demand: Demand, sharing: Sharing | None) -> Sequence[CardFilter]:
    """Return the filters that apply on this node. The last one is the first to be named as a reason."""
    filters = []
    if sharing is not None or any(card.sharers for card in capacity.cards):
        filters.append(_by_labels(capacity, sharing))
    # Nearly all clusters use no isolation.
    if demand.isolation or capacity.isolations or any(card.isolations for card in capacity.cards):
        filters += _by_isolation(capacity, demand)
    return filters


def _by_labels(capacity: NodeCapacity, sharing: Sharing | None) -> CardFilter:
    its = {card.gpu.uuid for card in group_cards(capacity, sharing)}
    # An affinity group on two cards is an error (a second leader, a forged assignment): such a group gets no more pods.
    cards = (card for card in capacity.cards if is_open(card, sharing) and (not its or its == {card.gpu.uuid}))
    missing = Missing.GROUP_FULL if its else Missing.KEPT_OFF
    return CardFilter(cards=frozenset(card.gpu.uuid for card in cards), missing=missing)


def _by_isolation(capacity: NodeCapacity, demand: Demand) -> Sequence[CardFilter]:
    isolation = capacity.isolation_of(demand.isolation)
    cards = frozenset(card.gpu.uuid for card in capacity.cards if card.joins(isolation))
    if len(cards) == len(capacity.cards) or all(wanted.whole for wanted in demand.cards):
        return ()
    return (CardFilter(cards=cards, missing=Missing.OTHER_ISOLATION),)


def group_cards(capacity: NodeCapacity, sharing: Sharing | None) -> tuple[CardCapacity, ...]:
    """Return the cards of this node on which the pod's affinity group has shares."""
    if sharing is None or not sharing.affinity:
        return ()
    group = AffinityGroup(sharing.namespace, sharing.affinity)
    return tuple(card for card in capacity.cards if any(group in groups_of(labels) for labels in card.sharers))


def is_open(card: CardCapacity, sharing: Sharing | None) -> bool:
    """Return whether the labels allow the pod to share the card with the pods on it."""
    return card.admits(() if sharing is None else (sharing,))


def with_shares_on(capacity: NodeCapacity, cards: frozenset[GpuUuid]) -> NodeCapacity:
    """Return the node's free capacity where only these cards have free memory and compute for shares, so that the search
    remains exact, over fewer cards."""
    if len(cards) == len(capacity.cards):
        return capacity
    left = (card if card.gpu.uuid in cards else replace(card, free_mib=0, free_core=0) for card in capacity.cards)
    return replace(capacity, cards=tuple(left))
