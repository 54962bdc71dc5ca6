"""Find the rails of VFs, which are the rails of their PFs. Rail r of every node is on one leaf switch.

A node that reports no rail of any PF counts as being on every rail.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from central.ledger.model import NodeCapacity
from lading.vocabulary import PciAddress

Rails = frozenset[int]


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
