"""Choose cards and VFs together for one container, by an exact search for one stated objective.

It takes the topology of a node, what the container wants, and what is free. It returns a `Found`, or says that there is no
choice. The objective, of which what comes first counts first and less is better:

    cards that the pod does not have at another time anyway; of these those it has not even a part of
    whether the cards are no NVSwitch partition (a refusal where that is demanded, and the node has any)
    the worst link between two of the cards
    where the pod has VFs at another time: the VFs that are not among these
    the worst distance of a card and its VF (vfs.py has the pairs)
    what a policy prefers among cards that are given in part
    the sum of the links; the sum of the distances
    groups broken open: partitions and switches of which all cards were free, some are taken and some are left
    the load of the PFs; the lowest card addresses; the lowest VF addresses

Nothing leaves the required scope: each of its sites is searched for itself.

How: for each level of links, the best first, all sets of cards of which no two have a worse link, card by card in the order of
addresses; so the first of equal sets is the lowest, and the search ends when a set is as good as any could be. Cards between
which nothing tells (one switch, the same links to all others, the same partitions) are taken lowest first, so that of each kind
only the number is tried. For each set the VFs are exact (vfs.py). The worst case, 8 of 16 cards of which each is a kind of its
own, has 12,870 sets.

What was found is kept, by topology and state: nodes that are built alike share it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from central.fit.topology import Apart, Distance, NodeTopology, Site, bits
from central.fit.vfs import Choice, FreeVfs
from central.request.model import PartitionPolicy, RdmaPolicy, Scope

# Sets of cards that are looked at in one site: more than 8 of 16 cards can have. A larger node gets the best of so many, and
# what is not found among them counts as not decided, so that no pod and no node keeps the one thread of central busy.
MOST_SETS: Final = 1 << 14
REMEMBERED: Final = 16384  # some 700 bytes each
_LEVELS: Final = {
    Scope.SWITCH: Distance.SWITCHES,
    Scope.NUMA: Distance.NUMA,
    Scope.SOCKET: Distance.SOCKET,
    Scope.ANY: Distance.CROSS,
}


class Query(NamedTuple):
    """The request of one container."""

    cards: int
    vfs: int = 0  # as the policy counts them
    rdma: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    partition: PartitionPolicy | None = None  # None: not looked at
    first: bool = False  # the first choice will do, not the best


class State(NamedTuple):
    """The state of one node. Bit masks are by the topology's numbers."""

    cards: int  # that may be taken
    again: int = 0  # of these: those that the pod has at another time
    partly: int = 0  # and those it has a part of then, and would take more of
    untouched: int = 0  # cards of which no pod holds anything
    ranks: tuple[int, ...] = ()  # of each card, where a policy prefers some: the lowest first
    vfs: FreeVfs = FreeVfs()
    kinds: tuple[int, ...] = ()  # of each card, where some make another difference to what follows


class Found(NamedTuple):
    """The best choice, or with `alternatives` one of them. Compares as the objective does."""

    key: tuple[int, ...]
    cards: int
    vfs: int
    apart: Apart

    @property
    def order(self) -> tuple[tuple[int, ...], Sequence[int], Sequence[int]]:
        """Return a sort key. Of equal sets of one size the one with the lowest address that the other lacks comes first."""
        return self.key, bits(self.cards), bits(self.vfs)


class SearchResult(NamedTuple):
    found: Found | None
    sets: int  # of cards that were looked at: what it cost
    ended: bool = False  # nothing was found among MOST_SETS, and there are more


@lru_cache(maxsize=REMEMBERED)
def find(topology: NodeTopology, query: Query, state: State) -> SearchResult:
    searches = [_Search(topology, site, query, state) for site in sites_of(topology, query.scope)]
    found = [best for search in searches if (best := search.best())]
    sets, ended = sum(search.sets for search in searches), not found and any(search.ended for search in searches)
    return SearchResult(min(found, key=lambda one: one.order, default=None), sets, ended)


class Alternatives(NamedTuple):
    found: Sequence[Found]
    sets: int  # as in SearchResult


def alternatives(topology: NodeTopology, query: Query, state: State, most: int) -> Alternatives | None:
    """Return all choices that differ for what follows, the best first; None if that takes more than `most` sets."""
    found: list[Found] = []
    sets = 0
    for site in sites_of(topology, query.scope):
        for one in _Search(topology, site, query, state).every():
            sets += 1
            if sets > most:
                return None
            if one is not None:
                found.append(one)
    return Alternatives(sorted(found, key=lambda one: one.order), sets)


def sites_of(topology: NodeTopology, scope: Scope) -> Sequence[Site]:
    return topology.groups[_LEVELS[scope]]


class _Search:
    """A search within one site. `_best` is what was found so far."""

    def __init__(self, topology: NodeTopology, site: Site, query: Query, state: State) -> None:
        self._topology = topology
        self._links = topology.links
        self._site = site
        self._query = query
        self._state = state
        self._honor = query.partition is PartitionPolicy.HONOR and topology.parted
        self._split = int(query.partition is not None and topology.parted)  # in the keys of sets that are no partition
        self._vfs = Choice(topology, site, query.rdma, query.cards, query.vfs, state.vfs)
        self._cards = state.cards & site.cards & ~self._vfs.useless_cards()
        self._whole = [group for group in topology.kept if group & state.untouched == group]
        self._farthest = site.levels[-1]
        groups = topology.groups
        within = (level for level in range(self._farthest) if self._vfs.could_be_within(groups[level], self._cards))
        self._nearest = next(within, self._farthest)
        self._best: Found | None = None
        self.sets = 0  # that were looked at
        self.ended = False  # by MOST_SETS

    def best(self) -> Found | None:
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

    def every(self) -> Iterator[Found | None]:
        """Yield the best choice with each set of cards, None for a set without a choice."""
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

    # ---- what the pod has at another time

    def _quota(self, cards: int) -> tuple[int, int]:
        """Return how many of these cards are new to the pod, and of how many the pod would take more than it has at another
        time."""
        partly = (cards & self._state.partly).bit_count()
        return cards.bit_count() - partly - (cards & self._state.again).bit_count(), partly

    def _quotas(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers of cards of each sort, the fewest new cards first. If the pod has no cards at another time, all are
        new."""
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
            of_all = level * pairs if level == levels[0] else None  # no two have a better one
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
        """Yield, in the order of addresses, each set of cards that has `missing` of the allowed ones beside `cards`."""
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
        """Return the worst link, and the sum of all."""
        links, numbers = self._links, bits(cards)
        between = [links[a][b] for a in numbers for b in numbers if a < b]
        return max(between, default=0), sum(between)

    # ---- one set of cards

    def _judge(self, cards: int, link: int, links: int, first: tuple[int, int, int]) -> None:
        """Compare these cards, with their best VFs, to the best choice so far, and keep the better one. Sets come in the order
        of addresses, so the first of equal sets is kept."""
        best, vfs = self._best, self._vfs
        level, cost = self._closest(cards, self._farthest if best is None or link < best.apart.link else best.apart.distance)
        if cost is None:
            return
        compared = vfs.without_address(cost)
        ranks = sum([self._state.ranks[n] for n in bits(cards)]) if self._state.ranks else 0
        new = vfs.new(compared) if self._state.vfs.again else 0  # how many it takes is else no matter of the choice
        but_last = *first, link, new, level, ranks, links, vfs.distances(compared)
        if best is not None and but_last > best.key[: len(but_last)]:
            return
        broken = len([1 for group in self._whole if 0 != group & cards != group])
        key = *but_last, broken, vfs.load(compared)
        if best is None or key < best.key:
            split = first[-1] if self._query.cards > 1 else 0
            self._best = Found(key, cards, vfs.vfs(cost), Apart(split, link, level))

    def _closest(self, cards: int, farthest: int) -> tuple[int, int | None]:
        """Return the least worst distance, and the cost with it; a greater distance only if it takes fewer new VFs."""
        vfs = self._vfs
        if not self._state.vfs.again:
            for level in range(self._nearest, farthest + 1):
                cost = vfs.cost(cards, level)
                if cost is not None:
                    return level, cost
            return farthest, None
        costs = [(vfs.new(vfs.without_address(cost)), level, cost) for level in range(self._farthest + 1)
                 if (cost := vfs.cost(cards, level)) is not None]  # fmt: skip
        _, level, found = min(costs, default=(0, farthest, None))
        return level, found

    # ---- what no set can surpass

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
    """Sets of cards of which no two have a worse link than a certain one."""

    joined: Sequence[int]  # by card: those with such a link to it
    before: Sequence[int]  # by card: those that are taken before it, for nothing tells between them
    every: bool = False  # all sets are such
    ideal: tuple[int, ...] | None = None


def _alike(topology: NodeTopology, cards: int, state: State) -> Sequence[int]:
    """Return, for each card, the cards with a lower address that differ from it in nothing but the address."""
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
    """Return whether the site has more than a single card: that is as far from everything as any other in the next larger
    site."""
    return bool(site.ports) or site.cards.bit_count() > 1
