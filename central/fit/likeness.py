"""Which rooms are alike: what a verdict and a score depend on, and nothing that only tells one device from another.

In a cluster most nodes are one of a few kinds, in one of a few hundred states. A verdict about one holds for all that are
alike: a new ask is judged some hundred times, not 5,000 times, and a node that changed was mostly seen in that state before.

Enters: a room. Leaves: a key to be hashed and compared; equal keys, equal verdicts and scores for every ask of the kind that it
is for. Most asks do not care where on the node a card is; for the others rooms that are alike are fewer.
"""

from collections.abc import Callable, Hashable

from central.assignment.sharing import Labels
from central.fit.demand import Demand, is_placed
from central.fit.topology import lay_out
from central.ledger.model import CardRoom, NodeRoom

_State = tuple[str, int, bool, bool, int, int, bool, int, tuple[Labels, ...], tuple[tuple[str, int, bool], ...]]
Likeness = Callable[[NodeRoom], Hashable]


def likeness_for(demand: Demand) -> Likeness:
    """The one that leaves the fewest rooms to judge."""
    if not is_placed(demand):
        return likeness
    return likeness_of_devices if demand.vfs_peak else likeness_of_cards


def likeness_of_devices(room: NodeRoom) -> Hashable:
    """For asks to which it matters where cards and VFs sit: which ones are free, in a topology that is the same."""
    return _in_place(room, vfs=True)


def likeness_of_cards(room: NodeRoom) -> Hashable:
    """The same for asks without VFs."""
    return _in_place(room, vfs=False)


def likeness(room: NodeRoom) -> Hashable:
    """Cards in any order are alike; so are VFs, of which only their number counts."""
    cards = [_state(card) for card in room.cards]
    cards.sort()
    usable = free = 0
    for vf in room.vfs:
        usable += vf.usable
        free += vf.free
    return room.reported, room.reconciled, room.reachable, tuple(cards), usable, free, len(room.vfs)


def _in_place(room: NodeRoom, *, vfs: bool) -> Hashable:
    topology, cards, asked = lay_out(room, vfs=vfs)
    states = tuple(_state(room.cards[number]) for number in cards)
    free = tuple((room.vfs[number].usable, room.vfs[number].free) for number in asked)
    return topology, room.reported, room.reconciled, room.reachable, states, free


def _state(card: CardRoom) -> _State:
    gpu = card.gpu
    kind = gpu.model, gpu.usable_mib, gpu.mig_enabled, card.usable
    return *kind, card.free_mib, card.free_core, card.pods > 0, card.containers, card.sharers, _instances(card)


def _instances(card: CardRoom) -> tuple[tuple[str, int, bool], ...]:
    """MIG instances by profile, and which of them are free."""
    return tuple(sorted((mig.profile, mig.memory_mib, mig.uuid in card.free_mig) for mig in card.gpu.mig))
