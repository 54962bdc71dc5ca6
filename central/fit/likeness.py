"""Which rooms are alike: what a verdict and a score depend on, and nothing that only tells one device from another.

In a cluster most nodes are one of a few kinds, in one of a few hundred states. A verdict about one holds for all that are
alike: a new ask is judged some hundred times, not 5,000 times, and a node that changed was mostly seen in that state before.

Enters: a room. Leaves: a key to be hashed and compared; equal keys, equal verdicts and scores for every ask.
"""

from collections.abc import Hashable

from central.ledger.model import NodeRoom


def likeness(room: NodeRoom) -> Hashable:
    """Cards in any order are alike; so are VFs, of which only their number counts."""
    cards = []
    for card in room.cards:
        gpu = card.gpu
        kind = gpu.model, gpu.usable_mib, gpu.mig_enabled, card.usable
        cards.append((*kind, card.free_mib, card.free_core, card.pods > 0, card.containers))
    cards.sort()
    usable = free = 0
    for vf in room.vfs:
        usable += vf.usable
        free += vf.free
    return room.reported, room.reconciled, room.reachable, tuple(cards), usable, free, len(room.vfs)
