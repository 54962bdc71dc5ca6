"""Choose cards and VFs together for one container, by an exact search for one stated objective.

Take a node's topology, the container's request, and the free devices. Return the best choice (`JointChoice`), or none. The
objective, with the most important criterion first; less is better:

    cards that are new to the pod, because it does not have them at another time; of its other cards, those it takes more of
    whether the cards are no NVSwitch partition (a refusal where that is demanded, and the node has any)
    the worst link between two of the cards
    where the pod has VFs at another time: the VFs that are new to the pod
    the worst distance of a card and its VF (vfs.py has the pairs)
    the policy's preference among cards that are given in part
    the sum of the links; the sum of the distances
    groups broken open: partitions and switches of which all cards were free, some are taken and some are left
    the load of the PFs; the lowest card addresses; the lowest VF addresses

No device is taken outside the required scope, because each site of the scope is searched on its own.

For each level of links, the best first, the search tries all sets of cards without a worse link, in the order of addresses. So
the first of equal sets has the lowest addresses, and the search ends when a set is as good as any could be. Cards that are
equivalent (one switch, the same links to all others, the same partitions) are taken lowest first, so that only their number is
tried. The VFs of each set are exact (vfs.py). The worst case, 8 of 16 cards that all differ, has 12,870 sets.

Results are cached by topology and state, so that nodes that are built alike share them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from central.request.model import PartitionPolicy, RdmaPolicy, Scope
from central.search.topology import Distance, Distances, NodeTopology, Site, bits
from central.search.vfs import Choice, FreeVfs

# Maximum tried sets of cards in one site, so that no pod and no node keeps central's single thread busy. Choosing 8 of 16 cards
# needs fewer. A larger node gets the best of so many sets; if none of them does, the result counts as undecided.
MOST_SETS: Final = 1 << 14
REMEMBERED: Final = 16384  # maximum cached results, some 700 bytes each
_LEVELS: Final = {
    Scope.SWITCH: Distance.SWITCHES,
    Scope.NUMA: Distance.NUMA,
    Scope.SOCKET: Distance.SOCKET,
    Scope.ANY: Distance.CROSS,
}


class Query(NamedTuple):
    """Represent the request of one container."""

    cards: int
    vfs: int = 0  # number of VFs, counted by the RDMA policy
    rdma: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    partition: PartitionPolicy | None = None  # None: partitions are ignored
    first: bool = False  # accept the first choice instead of the best


class DeviceMasks(NamedTuple):
    """Hold the state of one node's devices. Bit masks are by the topology's numbers."""

    cards: int  # available cards
    again: int = 0  # available cards that the pod has at another time
    partly: int = 0  # available cards of which the pod has a part at another time, and would take more
    untouched: int = 0  # cards of which no pod holds anything
    ranks: tuple[int, ...] = ()  # policy rank of each card, the lowest first; empty: no preference
    vfs: FreeVfs = FreeVfs()
    kinds: tuple[int, ...] = ()  # equivalence class of each card


class JointChoice(NamedTuple):
    """Represent a choice of cards and VFs for one container. Choices compare as the objective does."""

    key: tuple[int, ...]
    cards: int
    vfs: int
    distances: Distances

    @property
    def order(self) -> tuple[tuple[int, ...], Sequence[int], Sequence[int]]:
        """Return the sort key of a choice. Among equal sets, the one with the lower addresses comes first, compared card by
        card."""
        return self.key, bits(self.cards), bits(self.vfs)


class SearchResult(NamedTuple):
    choice: JointChoice | None
    sets: int  # number of tried sets of cards, the cost of the search
    ended: bool = False  # True if none of the first MOST_SETS sets does, and there are more


@lru_cache(maxsize=REMEMBERED)
def find(topology: NodeTopology, query: Query, state: DeviceMasks) -> SearchResult:
    searches = [_Search(topology, site, query, state) for site in sites_of(topology, query.scope)]
    result = [best for search in searches if (best := search.best())]
    sets, ended = sum(search.sets for search in searches), not result and any(search.ended for search in searches)
    return SearchResult(min(result, key=lambda one: one.order, default=None), sets, ended)


class Alternatives(NamedTuple):
    choices: Sequence[JointChoice]
    sets: int  # number of tried sets of cards


def alternatives(topology: NodeTopology, query: Query, state: DeviceMasks, most: int) -> Alternatives | None:
    """Return all choices that are not equivalent for the following containers, the best first; None if there are more than
    `most` sets."""
    choices: list[JointChoice] = []
    sets = 0
    for site in sites_of(topology, query.scope):
        for one in _Search(topology, site, query, state).every():
            sets += 1
            if sets > most:
                return None
            if one is not None:
                choices.append(one)
    return Alternatives(sorted(choices, key=lambda one: one.order), sets)


def sites_of(topology: NodeTopology, scope: Scope) -> Sequence[Site]:
    return topology.groups[_LEVELS[scope]]


class _Search:
    """Search within one site. `_best` is the best choice so far."""

    def __init__(self, topology: NodeTopology, site: Site, query: Query, state: DeviceMasks) -> None:
        self._topology = topology
        self._links = topology.links
        self._site = site
        self._query = query
        self._state = state
        self._honor = query.partition is PartitionPolicy.HONOR and topology.parted
        self._split = int(query.partition is not None and topology.parted)  # in keys of sets that are no partition
        self._vfs = Choice(topology, site, query.rdma, query.cards, query.vfs, state.vfs)
        self._cards = state.cards & site.cards & ~self._vfs.useless_cards()
        self._whole = [group for group in topology.kept if group & state.untouched == group]
        self._farthest = site.levels[-1]
        groups = topology.groups
        within = (level for level in range(self._farthest) if self._vfs.could_be_within(groups[level], self._cards))
        self._nearest = next(within, self._farthest)
        self._best: JointChoice | None = None
        self.sets = 0  # number of tried sets
        self.ended = False  # True once MOST_SETS is reached

    def best(self) -> JointChoice | None:
        if not self._query.cards:
            self._judge(0, 0, 0, (0, 0, 0))
            return self._best
        if self._cards.bit_count() >= self._query.cards and self._vfs.suffice():
            for quota in self._quotas():
                if self._find_partition(quota):
                    break
                if not self._honor and self._find_set(quota):
                    break
                if self.ended:
                    break
        return self._best

    def every(self) -> Iterator[JointChoice | None]:
        """Yield the best choice for each set of cards; None for a set without one."""
        if not self._query.cards:
            yield self.best()
            return
        kinds = _Level([-1] * self._topology.cards, _alike(self._topology, self._cards, self._state))
        for cards in self._sets(kinds, self._cards, 0, self._query.cards):
            self._best = None
            split = self._split if cards not in self._topology.partitions else 0
            if not (split and self._honor):
                self._judge(cards, *self._linked(cards), (*self._quota(cards), split))
            yield self._best

    # ---- cards that the pod has at another time

    def _quota(self, cards: int) -> tuple[int, int]:
        """Return the number of cards that are new to the pod, and of cards of which the pod holds only a part at another
        time."""
        partly = (cards & self._state.partly).bit_count()
        return cards.bit_count() - partly - (cards & self._state.again).bit_count(), partly

    def _quotas(self) -> Iterator[tuple[int, int]]:
        """Yield the possible numbers of new cards and of partly used cards, the fewest new cards first. If the pod has no cards
        at another time, all are new."""
        count, cards, state = self._query.cards, self._cards, self._state
        again, partly = (cards & state.again).bit_count(), (cards & state.partly).bit_count()
        fresh = cards.bit_count() - again - partly
        for new in range(max(0, count - again - partly), min(count, fresh) + 1):
            for more in range(max(0, count - new - again), min(count - new, partly) + 1):
                yield new, more

    # ---- sets of cards

    def _find_partition(self, quota: tuple[int, int]) -> bool:
        if self._query.partition is None:
            return False
        for cards in self._topology.partitions:
            of_size = cards.bit_count() == self._query.cards and cards & self._cards == cards
            if of_size and self._quota(cards) == quota:
                self._judge(cards, *self._linked(cards), (*quota, 0))
        return self._best is not None

    def _find_set(self, quota: tuple[int, int]) -> bool:
        first = *quota, self._split
        pairs = self._query.cards * (self._query.cards - 1) // 2
        numbers, links = bits(self._cards), self._links
        levels = sorted({links[a][b] for a in numbers for b in numbers if a < b}) if self._query.cards > 1 else [0]
        alike = _alike(self._topology, self._cards, self._state)
        reusing = self._state.again or self._state.partly
        for level in levels:
            of_all = level * pairs if level == levels[0] else None  # no two cards have a better link
            joined = [sum(1 << b for b, link in enumerate(row) if link <= level) for row in links]
            every = not any(alike) and all(joined[number] & self._cards == self._cards for number in numbers)
            at = _Level(joined, alike, every, self._ideal(first, level, levels[0]))
            for cards in self._sets(at, self._cards, 0, self._query.cards):
                if self.sets >= MOST_SETS:
                    self.ended = True
                    return self._best is not None
                self.sets += 1
                if not reusing or self._quota(cards) == quota:
                    self._judge(cards, level, self._linked(cards)[1] if of_all is None else of_all, first)
                    if self._best is not None and (self._query.first or self._best.key == at.ideal):
                        break
            if self._best is not None:
                return True
        return False

    def _sets(self, at: "_Level", allowed: int, cards: int, missing: int) -> Iterator[int]:
        """Yield, in the order of addresses, each union of `cards` with `missing` of the allowed cards."""
        if not cards and at.every:
            yield from map(sum, combinations([1 << number for number in bits(allowed)], missing))
            return
        while allowed.bit_count() >= missing:
            low = allowed & -allowed
            allowed ^= low
            number = low.bit_length() - 1
            if at.before[number] & ~cards:
                continue
            if missing == 1:
                yield cards | low
            else:
                yield from self._sets(at, allowed & at.joined[number], cards | low, missing - 1)

    def _linked(self, cards: int) -> tuple[int, int]:
        """Return the worst link between two of these cards, and the sum of all links."""
        links, numbers = self._links, bits(cards)
        between = [links[a][b] for a in numbers for b in numbers if a < b]
        return max(between, default=0), sum(between)

    # ---- one set of cards

    def _judge(self, cards: int, link: int, links: int, first: tuple[int, int, int]) -> None:
        """Compare these cards, with their best VFs, to the best choice so far, and keep the better one. Sets come in the order
        of addresses, so the first of equal sets wins."""
        best, vfs = self._best, self._vfs
        level, cost = self._closest(
            cards, self._farthest if best is None or link < best.distances.link else best.distances.distance
        )
        if cost is None:
            return
        compared = vfs.without_address(cost)
        ranks = sum([self._state.ranks[n] for n in bits(cards)]) if self._state.ranks else 0
        new = vfs.new(compared) if self._state.vfs.again else 0  # without VFs at another time, all choices have the same number
        but_last = *first, link, new, level, ranks, links, vfs.distances(compared)
        if best is not None and but_last > best.key[: len(but_last)]:
            return
        broken = len([1 for group in self._whole if 0 != group & cards != group])
        key = *but_last, broken, vfs.load(compared)
        if best is None or key < best.key:
            split = first[-1] if self._query.cards > 1 else 0
            self._best = JointChoice(key, cards, vfs.vfs(cost), Distances(split, link, level))

    def _closest(self, cards: int, farthest: int) -> tuple[int, int | None]:
        """Return the smallest worst distance, and the cost with it; a greater distance only if it takes fewer new VFs. The cost
        is None if there is no choice."""
        vfs = self._vfs
        if not self._state.vfs.again:
            for level in range(self._nearest, farthest + 1):
                cost = vfs.cost(cards, level)
                if cost is not None:
                    return level, cost
            return farthest, None
        costs = [(vfs.new(vfs.without_address(cost)), level, cost) for level in range(self._farthest + 1)
                 if (cost := vfs.cost(cards, level)) is not None]  # fmt: skip
        _, level, result = min(costs, default=(0, farthest, None))
        return level, result

    # ---- a lower bound

    def _ideal(self, first: tuple[int, int, int], level: int, least: int) -> tuple[int, ...]:
        """Return a lower bound of the keys of all sets of cards with a worst link of `level`."""
        count = self._query.cards
        pairs = count * (count - 1) // 2
        ranks = sum(sorted(self._state.ranks[n] for n in bits(self._cards))[:count]) if self._state.ranks else 0
        new, load = self._vfs.least()
        new = new if self._state.vfs.again else 0
        links = least * pairs + level - least if pairs else 0
        return *first, level, new, self._nearest, ranks, links, self._nearest, 0, load


class _Level(NamedTuple):
    """Hold the conditions for sets of cards of which no two have a link worse than a given level."""

    joined: Sequence[int]  # bit mask of the cards with such a link to it, by card
    before: Sequence[int]  # bit mask of the equivalent cards that are taken before it, by card
    every: bool = False  # True if all sets satisfy the conditions
    ideal: tuple[int, ...] | None = None


def _alike(topology: NodeTopology, cards: int, state: DeviceMasks) -> Sequence[int]:
    """Return, for each card, a bit mask of the equivalent cards: those with a lower address that differ only in their
    address."""
    return _alike_cards(topology, cards, state.again, state.partly, state.untouched, state.ranks, state.kinds)


@lru_cache(maxsize=REMEMBERED)
def _alike_cards(
    topology: NodeTopology, cards: int, again: int, partly: int, untouched: int, ranks: tuple[int, ...], kinds: tuple[int, ...]
) -> Sequence[int]:
    links, numbers = topology.links, bits(cards)
    home = {
        card: site.number
        for sites in reversed(topology.groups)
        for site in sites
        if _is_home(site)
        for card in bits(site.cards)
    }
    tells = {
        card: (
            home.get(card),
            [mask >> card & 1 for mask in (again, partly, untouched)],
            [mask >> card & 1 for mask in topology.partitions if mask.bit_count() > 1],
            [mask == 1 << card for mask in topology.partitions if mask.bit_count() == 1].count(True),
            ranks[card] if ranks else 0,
            kinds[card] if kinds else 0,
        )
        for card in numbers
    }
    before = [0] * topology.cards
    for one in numbers:
        for other in numbers:
            if other < one and tells[one] == tells[other]:
                others = (card for card in range(topology.cards) if card not in (one, other))
                if all(links[one][card] == links[other][card] for card in others):
                    before[one] |= 1 << other
    return before


def _is_home(site: Site) -> bool:
    """Return whether the site has more than a single card; a single card is as far from all others as any card in the next
    larger site."""
    return bool(site.ports) or site.cards.bit_count() > 1
