"""Show the cluster as if some pods were gone and others placed, without a change of the ledger.

It takes the ledger's books, the pods that would be gone, and the holds of pods that would be placed. It returns the free
capacity (`NodeCapacity`) of nodes and the cards of affinity groups, by the ledger's own rules at the time of the call: devices
that fit there could be reserved.

cpu and memory count if the Node object says its allocatable amounts. Facts that only kube-scheduler knows (selectors, affinity,
taints, volumes) are not checked. A node that reports no rail of any PF counts as being on every rail.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from central.assignment.sharing import AffinityGroup
from central.ledger.books import Books
from central.ledger.groups import CardOf, cards_in_groups
from central.ledger.model import NodeCapacity
from central.ledger.usage import Hold
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PciAddress, PodUid

Rails = frozenset[int]  # the rails of VFs, which are those of their PFs; rail r of every node is on one leaf switch


def rails_of(capacity: NodeCapacity, vfs: Collection[PciAddress]) -> Rails:
    """Return the known rails of these VFs of the node."""
    return frozenset(vf.pf.rail for vf in capacity.vfs if vf.vf.bdf in vfs and vf.pf.rail is not None)


def free_rails(capacity: NodeCapacity) -> Rails:
    return frozenset(vf.pf.rail for vf in capacity.vfs if vf.free and vf.pf.rail is not None)


def capacity_on_rails(capacity: NodeCapacity, rails: Rails) -> NodeCapacity:
    """Return the free capacity as if no VF of another rail were free. On a node with rails, a VF of an unknown rail is not
    free."""
    if all(vf.pf.rail is None for vf in capacity.vfs):
        return capacity
    return replace(
        capacity, vfs=tuple(vf if not vf.free or vf.pf.rail in rails else replace(vf, free=False) for vf in capacity.vfs)
    )


def widest(sets: Mapping[Rails, int]) -> list[Rails]:
    """Return the sets that are within no other, the most frequent first. Sets without a rail are left out."""
    alone = [one for one in sets if one and not any(one < other for other in sets)]
    return sorted(alone, key=lambda one: (-sets[one], sorted(one)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Place a pod on a node in an overlay."""

    node: str
    hold: Hold
    cpu_memory: CpuMemory = NO_CPU_MEMORY


_NOTHING: Final[Mapping[str, tuple[Put, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Show the cluster with these changes."""

    books: Books
    removed: frozenset[PodUid] = frozenset()
    put: Mapping[str, tuple[Put, ...]] = field(default_factory=lambda: _NOTHING)  # node → hundreds of holds of a gang
    rails: Rails | None = None  # only VFs of these rails count as free

    def without(self, *pods: PodUid) -> "Overlay":
        return replace(self, removed=self.removed.union(pods))

    def with_put(self, *put: Put) -> "Overlay":
        by_node = dict(self.put)
        for one in put:
            by_node[one.node] = (*by_node.get(one.node, ()), one)
        return replace(self, put=by_node)

    def on_rails(self, rails: Rails) -> "Overlay":
        return replace(self, rails=rails)

    def capacity(self, name: str) -> NodeCapacity:
        capacity = self._capacity(name, [(one.hold, one.cpu_memory) for one in self.put.get(name, ())])
        return capacity if self.rails is None else capacity_on_rails(capacity, self.rails)

    def _capacity(self, name: str, put: Sequence[tuple[Hold, CpuMemory]]) -> NodeCapacity:
        return self.books.capacity_as_if(name, self.removed, put)

    def group_cards(self, group: AffinityGroup) -> frozenset[CardOf]:
        """Return the cards of an affinity group; if empty, the group's next pod may open any card."""
        every = (one for put in self.put.values() for one in put)
        put = (card for one in every for its, card in cards_in_groups(one.node, one.hold.taken) if its == group)
        return self.books.groups.cards(group, self.removed).union(put)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyNodes(Overlay):
    """Show the cluster as if only placed pods held devices, and all devices and nodes were in order."""

    def _capacity(self, name: str, put: Sequence[tuple[Hold, CpuMemory]]) -> NodeCapacity:
        capacity = self.books.capacity_as_if(name, self.books.holders_on(name), put)
        held = {vf for hold, _ in put for vf in hold.taken.vfs}
        cards = tuple(replace(card, usable=True) for card in capacity.cards)
        vfs = tuple(replace(one, usable=True, free=one.vf.bdf not in held) for one in capacity.vfs)
        return replace(capacity, cards=cards, vfs=vfs, reconciled=True, reachable=True, rebooted=False)
