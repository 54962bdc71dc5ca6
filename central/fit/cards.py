"""Which cards: an exact search. If the pod's cards can be had on this node, they are found.

Enters: the cards that may be given, the cards wanted in order, an order of preference (prefer.py). Leaves: the cards of each
container, the first complete choice in the order of preference; or None; or that the search was ended by its bound.

Exact: for each container every choice is tried, but cards that are alike (equal size, equal amounts free, equal use by this
pod) are one, for which of them is taken makes no difference to what follows; and a state of all cards that failed once is not
searched again. What a container takes counts in the phases in which it runs (demand.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from central.fit.demand import CardsWanted
from central.ledger.model import CardRoom
from lading.nodedevices import Gpu

_State = tuple[object, ...]


class SearchEndedError(Exception):
    """After as many choices as are allowed."""


class Card:
    """One card during one search: what others left, and what this pod takes of it in each phase so far."""

    __slots__ = ("address", "busy", "containers", "core", "free", "free_core", "free_mib", "gpu", "mib", "usable_mib", "whole")

    def __init__(self, room: CardRoom, phases: int) -> None:
        gpu = room.gpu
        self.gpu: Gpu = gpu
        self.address = (len(gpu.bdf), gpu.bdf)  # as numbers sort: a domain of five digits after those of four
        self.usable_mib = gpu.memory_mib - gpu.reserved_mib
        self.free = room.pods == 0  # of other pods
        self.free_mib = room.free_mib
        self.free_core = room.free_core
        self.containers = room.containers  # on it, this pod's too
        self.busy = 0  # bit mask: phases in which this pod uses it
        self.whole = 0  # and those in which one container has it whole
        self.mib = [0] * phases
        self.core = [0] * phases

    def takes(self, wanted: CardsWanted) -> bool:
        """Whether there is room for that container too."""
        if wanted.whole:
            return self.free and not self.busy & wanted.mask
        if self.whole & wanted.mask:
            return False
        mib = wanted.mib_of(self.usable_mib)
        if mib < 1:  # a percentage of nearly nothing
            return False
        core = wanted.core_percent or 0
        if not self.busy:
            return mib <= self.free_mib and core <= self.free_core
        return all(self.mib[n] + mib <= self.free_mib and self.core[n] + core <= self.free_core for n in wanted.phases)

    def put(self, wanted: CardsWanted, sign: int = 1) -> None:
        self.containers += sign
        if wanted.whole:
            self.whole ^= wanted.mask
            self.busy ^= wanted.mask
            return
        mib, core = wanted.mib_of(self.usable_mib) * sign, (wanted.core_percent or 0) * sign
        for phase in wanted.phases:
            self.mib[phase] += mib
            self.core[phase] += core
        self.busy = self.whole
        for phase, (some_mib, some_core) in enumerate(zip(self.mib, self.core, strict=True)):
            if some_mib or some_core:
                self.busy |= 1 << phase

    def beyond(self, wanted: CardsWanted) -> int:
        """What the pod would take of it beyond what it takes at other times: 0 nothing, 1 less than asked, 2 all of it."""
        if not self.busy:
            return 2
        if self.whole:
            return 0
        if wanted.whole:
            return 1
        mib, core = wanted.mib_of(self.usable_mib), wanted.core_percent or 0
        more_mib = max(self.mib[n] for n in wanted.phases) + mib - max(self.mib)
        more_core = max(self.core[n] for n in wanted.phases) + core - max(self.core)
        if more_mib <= 0 and more_core <= 0:
            return 0
        return 1 if more_mib < mib or max(0, more_core) < core else 2

    def state(self) -> _State:
        """Equal for cards between which a search need not tell. `busy` follows from the rest."""
        sizes = (self.usable_mib, self.free, self.free_mib, self.free_core)
        return (*sizes, self.whole, tuple(self.mib), tuple(self.core))


Prefer = Callable[[Sequence[Card], CardsWanted, int], Sequence[Card]]  # of cards that all take it: so many, the best first


class Chosen(NamedTuple):
    wanted: CardsWanted
    cards: Sequence[Card]


def choose_cards(
    cards: Sequence[Card], wanted: Sequence[CardsWanted], prefer: Prefer, *, steps: int
) -> Mapping[str, Chosen] | None:
    """The cards of each container by its name. `cards` are changed. SearchEndedError after `steps` choices."""
    search = _Search(cards, wanted, prefer, steps)
    if not search.run(0):
        return None
    return {chosen.wanted.container: chosen for chosen in search.chosen}


class _Search:
    def __init__(self, cards: Sequence[Card], wanted: Sequence[CardsWanted], prefer: Prefer, steps: int) -> None:
        self._cards = cards
        self._wanted = wanted
        self._prefer = prefer
        self._steps = steps
        self._failed: set[_State] = set()
        self.chosen: list[Chosen] = []

    def run(self, depth: int) -> bool:
        if depth == len(self._wanted):
            return True
        wanted = self._wanted[depth]
        having = [card for card in self._cards if card.takes(wanted)]
        if len(having) < wanted.count:
            return False
        if depth + 1 == len(self._wanted):  # nothing follows that could fail
            self.chosen.append(Chosen(wanted, self._best(having, wanted)))
            return True
        state = (depth, *sorted(card.state() for card in self._cards))
        if state in self._failed:
            return False
        for picks in self._ways(having, wanted):
            self._step()
            for card in picks:
                card.put(wanted)
            self.chosen.append(Chosen(wanted, picks))
            if self.run(depth + 1):
                return True
            self.chosen.pop()
            for card in picks:
                card.put(wanted, -1)
        self._failed.add(state)
        return False

    def _best(self, having: Sequence[Card], wanted: CardsWanted) -> Sequence[Card]:
        return having if len(having) == wanted.count else self._prefer(having, wanted, wanted.count)

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise SearchEndedError

    def _ways(self, having: Sequence[Card], wanted: CardsWanted) -> Iterator[Sequence[Card]]:
        """One choice of each kind: the preferred one, then the others by how many cards of which state they have."""
        first = self._best(having, wanted)
        yield first
        alike: dict[_State, list[Card]] = {}
        for card in self._prefer(having, wanted, len(having)):
            alike.setdefault(card.state(), []).append(card)
        tried = tuple(sum(1 for card in first if card in kind) for kind in alike.values())
        for counts in _splits([len(kind) for kind in alike.values()], wanted.count):
            if counts != tried:
                yield [card for kind, count in zip(alike.values(), counts, strict=True) for card in kind[:count]]


def _splits(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """All ways to take `count` from heaps of these sizes; the most from the first ones first."""
    if not sizes:
        if count == 0:
            yield ()
        return
    for head in range(min(sizes[0], count), -1, -1):
        if count - head <= sum(sizes[1:]):
            for tail in _splits(sizes[1:], count - head):
                yield head, *tail
