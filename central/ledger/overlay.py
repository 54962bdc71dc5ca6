"""The cluster as it would be: some pods gone, others placed. For questions only: nothing in the ledger changes by it.

It takes the ledger, the pods that would be gone, and what other pods would hold. It returns rooms and the cards of affinity
groups, by the ledger's own rules, as they are when they are asked for: what fits in such a room could be reserved there.

cpu and memory count where the Node says what there is. What only kube-scheduler knows (selectors, affinity, taints, volumes) is
not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from central.assignment.sharing import Group
from central.ledger.books import Books
from central.ledger.groups import CardOf, cards_in_groups
from central.ledger.model import NodeRoom
from central.ledger.rails import Rails, room_on_rails
from central.ledger.usage import Hold
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A pod that would be there."""

    node: str
    hold: Hold
    cpu_memory: CpuMemory = NO_CPU_MEMORY


_NOTHING: Final[Mapping[str, tuple[Put, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The cluster with these changes."""

    books: Books
    gone: frozenset[PodUid] = frozenset()
    put: Mapping[str, tuple[Put, ...]] = field(default_factory=lambda: _NOTHING)  # by node: a gang has hundreds of members
    rails: Rails | None = None  # as if only these had free VFs

    def without(self, *pods: PodUid) -> "Overlay":
        return replace(self, gone=self.gone.union(pods))

    def with_put(self, *put: Put) -> "Overlay":
        by_node = dict(self.put)
        for one in put:
            by_node[one.node] = (*by_node.get(one.node, ()), one)
        return replace(self, put=by_node)

    def on_rails(self, rails: Rails) -> "Overlay":
        return replace(self, rails=rails)

    def room(self, name: str) -> NodeRoom:
        room = self._room(name, [(one.hold, one.cpu_memory) for one in self.put.get(name, ())])
        return room if self.rails is None else room_on_rails(room, self.rails)

    def _room(self, name: str, put: Sequence[tuple[Hold, CpuMemory]]) -> NodeRoom:
        return self.books.room_as_if(name, self.gone, put)

    def group_cards(self, group: Group) -> frozenset[CardOf]:
        """Return the cards of an affinity group. Empty: any card may become the group's."""
        every = (one for put in self.put.values() for one in put)
        put = (card for one in every for its, card in cards_in_groups(one.node, one.hold.taken) if its == group)
        return self.books.group_cards(group, self.gone).union(put)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyNodes(Overlay):
    """The cluster as if no pod held a device, but those that are put there, and nothing were wrong with devices and nodes."""

    def _room(self, name: str, put: Sequence[tuple[Hold, CpuMemory]]) -> NodeRoom:
        room = self.books.room_as_if(name, self.books.holders_on(name), put)
        held = {vf for hold, _ in put for vf in hold.taken.vfs}
        cards = tuple(replace(card, usable=True) for card in room.cards)
        vfs = tuple(replace(one, usable=True, free=one.vf.bdf not in held) for one in room.vfs)
        return replace(room, cards=cards, vfs=vfs, reconciled=True, reachable=True, rebooted=False)
