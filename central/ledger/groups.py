"""Keep the cards of each affinity group: the cards on which pods with the same share-affinity label hold something.

It takes every change of a pod's hold on a node. It returns the cards of a group, and the groups that lost a card, so that pods
which were refused because of that card are requeued. Predictions count too: of two pods that are filtered at the same moment,
the second pod goes to the card of the first.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from central.assignment.model import Taken
from central.assignment.sharing import AffinityGroup, groups_of
from lading.vocabulary import GpuUuid, PodUid


class CardOf(NamedTuple):
    node: str
    uuid: GpuUuid


class Groups:
    def __init__(self) -> None:
        self._cards: dict[AffinityGroup, dict[CardOf, set[PodUid]]] = {}
        self._moved: dict[AffinityGroup, None] = {}

    def move(self, uid: PodUid, node: str, before: Taken | None, after: Taken | None) -> None:
        """Record that what the pod holds on the node changed."""
        had, has = set(cards_in_groups(node, before)), set(cards_in_groups(node, after))
        for group, card in had - has:
            cards = self._cards[group]
            cards[card].discard(uid)
            if not cards[card]:
                del cards[card]
                self._moved[group] = None
            if not cards:
                del self._cards[group]
        for group, card in has - had:
            self._cards.setdefault(group, {}).setdefault(card, set()).add(uid)

    def cards(self, group: AffinityGroup, without: Collection[PodUid] = ()) -> frozenset[CardOf]:
        """Return the group's cards as if these pods held nothing. Empty: the group's next pod may open any card."""
        result = self._cards.get(group)
        if not result:
            return frozenset()
        return frozenset(card for card, uids in result.items() if not uids.issubset(without))

    def members(self, group: AffinityGroup, card: CardOf) -> frozenset[PodUid]:
        return frozenset(self._cards.get(group, {}).get(card, ()))

    def take_moved(self) -> frozenset[AffinityGroup]:
        """Return the groups that left a card since the last call."""
        moved = frozenset(self._moved)
        self._moved.clear()
        return moved

    def all(self) -> dict[AffinityGroup, dict[CardOf, frozenset[PodUid]]]:
        return {group: {card: frozenset(uids) for card, uids in cards.items()} for group, cards in self._cards.items()}


def cards_in_groups(node: str, taken: Taken | None) -> Iterator[tuple[AffinityGroup, CardOf]]:
    for uuid, part in taken.gpus.items() if taken is not None else ():
        for group in groups_of(part.sharing) if part.sharing else ():
            yield group, CardOf(node, uuid)
