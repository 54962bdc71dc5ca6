"""Find equivalent rooms: what a verdict and a score depend on, and nothing that only tells one device from another.

In a cluster most nodes are one of a few kinds, in one of a few hundred states. A verdict about one room holds for its whole
class: a new request is judged some hundred times, not 5,000 times, and a node that changed was mostly seen in that state
before.

It takes a room, and returns the number of its equivalence class; the verdicts and scores of one class are equal for every
request of the kind that it is for. Most requests do not care where on the node a card is; for the others the classes are
smaller. A room is mostly looked at for several requests, so its number is remembered. A class has two numbers where the first
one was forgotten.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from central.assignment.sharing import Labels
from central.fit.demand import Demand, is_placed
from central.fit.interner import REMEMBERED, Interner
from central.fit.topology import lay_out
from central.ledger.model import CardRoom, NodeRoom

_Shared = tuple[bool, int, tuple[Labels, ...], tuple[str, ...]]
_State = tuple[str, int, bool, bool, int, int, _Shared, tuple[tuple[str, int, bool], ...]]
Equivalence = Callable[[NodeRoom], int]


def equivalence_for(demand: Demand) -> Equivalence:
    """Return the equivalence function that leaves the fewest rooms to judge."""
    if not is_placed(demand):
        return class_in_any_order
    return class_by_devices if demand.vfs_peak else class_by_cards


def _numbered(key: Callable[[NodeRoom], Hashable]) -> Equivalence:
    """Return a function that knows the last room of each node, which never changes, and other rooms by their key."""
    rooms: dict[str, tuple[NodeRoom, int]] = {}
    numbers = Interner()

    def number_of(room: NodeRoom) -> int:
        known = rooms.get(room.name)
        if known is None or known[0] is not room:
            if len(rooms) >= REMEMBERED:
                rooms.clear()
            known = rooms[room.name] = room, numbers.of(key(room))
        return known[1]

    return number_of


def _in_any_order(room: NodeRoom) -> Hashable:
    cards = [_state(card) for card in room.cards]
    cards.sort()
    usable = free = 0
    for vf in room.vfs:
        usable += vf.usable
        free += vf.free
    return *_node(room), tuple(cards), usable, free, len(room.vfs)


def _in_place(room: NodeRoom, *, vfs: bool) -> Hashable:
    topology, cards, asked = lay_out(room, vfs=vfs)
    states = tuple(_state(room.cards[number]) for number in cards)
    free = tuple((room.vfs[number].usable, room.vfs[number].free) for number in asked)
    return topology, *_node(room), states, free


def _node(room: NodeRoom) -> tuple[bool, bool, bool, bool, tuple[str, ...]]:
    return room.reported, room.reconciled, room.reachable, room.rebooted, room.isolations


def _state(card: CardRoom) -> _State:
    gpu = card.gpu
    kind = gpu.model, gpu.usable_mib, gpu.mig_enabled, card.usable
    shared = card.pods > 0, card.containers, card.sharers, card.isolations
    return *kind, card.free_mib, card.free_core, shared, _instances(card)


def _instances(card: CardRoom) -> tuple[tuple[str, int, bool], ...]:
    """Return the MIG instances of a card, sorted: the profile, the memory in MiB, and whether the instance is free."""
    return tuple(sorted((mig.profile, mig.memory_mib, mig.uuid in card.free_mig) for mig in card.gpu.mig))


# The order of cards makes no difference; of VFs only their number counts.
class_in_any_order: Final = _numbered(_in_any_order)
# For asks to which it matters where cards and VFs sit: which ones are free, in a topology that is the same.
class_by_devices: Final = _numbered(partial(_in_place, vfs=True))
# The same for requests without VFs.
class_by_cards: Final = _numbered(partial(_in_place, vfs=False))
