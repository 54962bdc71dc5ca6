"""Find nodes with equivalent free capacity, by comparing only what a verdict and a score depend on, not the devices'
identities.

Most nodes of a cluster are of a few kinds, in one of a few hundred states. A verdict about one node's free capacity
(`NodeCapacity`) holds for its whole equivalence class. So a new request is judged some hundred times, not 5,000 times, and the
state of a changed node was mostly judged before.

Take a `NodeCapacity`, and return the number of its class; verdicts and scores within a class are equal for every request that
the function supports. Most requests do not depend on a card's position in the node; for the others the classes are smaller. A
`NodeCapacity` is mostly checked for several requests, so its number is cached. A class gets a second number if the first one
was evicted from the cache.
"""

from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import Final

from central.assignment.sharing import Labels
from central.ledger.model import CardCapacity, NodeCapacity
from central.search.demand import Demand, is_placed
from central.search.topology import lay_out

REMEMBERED: Final = 32768  # maximum numbered values; a cluster has 15,000 nodes


class Interner:
    """Number distinct values, so that each is hashed and compared once: equal numbers mean equal values. A number is assigned
    once: a value that was evicted gets a new number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh = count()

    def of(self, thing: Hashable) -> int:
        if len(self._numbers) >= REMEMBERED:
            self._numbers.clear()
        return self._numbers.setdefault(thing, next(self._fresh))


_Shared = tuple[bool, int, tuple[Labels, ...], tuple[str, ...]]
_State = tuple[str, int, bool, bool, int, int, _Shared, tuple[tuple[str, int, bool], ...]]
Equivalence = Callable[[NodeCapacity], int]


def equivalence_for(demand: Demand) -> Equivalence:
    """Return the equivalence function with the fewest classes that is correct for the demand."""
    if not is_placed(demand):
        return class_in_any_order
    return class_by_devices if demand.vfs_peak else class_by_cards


def _numbered(key: Callable[[NodeCapacity], Hashable]) -> Equivalence:
    """Return a function that numbers classes by `key`, and caches the number of each node's last `NodeCapacity`, which is
    immutable."""
    capacities: dict[str, tuple[NodeCapacity, int]] = {}
    numbers = Interner()

    def number_of(capacity: NodeCapacity) -> int:
        known = capacities.get(capacity.name)
        if known is None or known[0] is not capacity:
            if len(capacities) >= REMEMBERED:
                capacities.clear()
            known = capacities[capacity.name] = capacity, numbers.of(key(capacity))
        return known[1]

    return number_of


def _in_any_order(capacity: NodeCapacity) -> Hashable:
    cards = [_state(card) for card in capacity.cards]
    cards.sort()
    usable = free = 0
    for vf in capacity.vfs:
        usable += vf.usable
        free += vf.free
    return *_node(capacity), tuple(cards), usable, free, len(capacity.vfs)


def _in_place(capacity: NodeCapacity, *, vfs: bool) -> Hashable:
    topology, cards, requested = lay_out(capacity, vfs=vfs)
    states = tuple(_state(capacity.cards[number]) for number in cards)
    free = tuple((capacity.vfs[number].usable, capacity.vfs[number].free) for number in requested)
    return topology, *_node(capacity), states, free


def _node(capacity: NodeCapacity) -> tuple[bool, bool, bool, bool, tuple[str, ...]]:
    return capacity.reported, capacity.reconciled, capacity.reachable, capacity.rebooted, capacity.isolations


def _state(card: CardCapacity) -> _State:
    gpu = card.gpu
    kind = gpu.model, gpu.usable_mib, gpu.mig_enabled, card.usable
    shared = card.pods > 0, card.containers, card.sharers, card.isolations
    return *kind, card.free_mib, card.free_core, shared, _instances(card)


def _instances(card: CardCapacity) -> tuple[tuple[str, int, bool], ...]:
    """Return the MIG instances of a card, sorted: the profile, the memory in MiB, and whether the instance is free."""
    return tuple(sorted((mig.profile, mig.memory_mib, mig.uuid in card.free_mig) for mig in card.gpu.mig))


# The class of a node when a request does not depend on positions: the order of cards has no effect, and VFs are only counted.
class_in_any_order: Final = _numbered(_in_any_order)
# The class of a node when a request depends on the positions of cards and VFs: topology and free devices are equal in a class.
class_by_devices: Final = _numbered(partial(_in_place, vfs=True))
# The class of a node when a request depends on the positions of cards and has no VFs.
class_by_cards: Final = _numbered(partial(_in_place, vfs=False))
