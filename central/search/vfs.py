"""Choose VFs for given cards: the best by worst distance, then by the sum of distances, then by the load of PFs.

Take a container's numbers of cards and VFs, and the free VFs; then take one set of cards after another. Return a cost for each
set: costs can be compared, and contain the chosen VFs. The choice is exact.

*Pairs* (`nearest`). n cards and m VFs form max(n, m) pairs of a card and a VF, distributed as evenly as possible. Each card is
in as many pairs as any other, or in one more; so is each VF. The cost depends on the distances of the pairs, for the best
assignment of pairs. Distances are a hierarchy: sites within sites. In a site g, let s(g) be the number of the VFs' ends of
pairs, and c(g) the number of the cards' ends. No more than min(s(g), c(g)) pairs can be within g. All sites reach that number
at once, if pairs are made from the deepest level up and the ends left over go one level higher: in g only ends of one side can
be left over. So for given ends, one assignment is the best for every level at once, hence for the worst distance and for the
sum:

    sum of distances = over all levels below the highest, over its sites g: max(0, s(g) - c(g))

Ends are given if the number of pairs divides evenly and the VFs are chosen. Otherwise the VFs, and the devices with one pair
more, are chosen, and levels may contradict one another: a VF below the switch of one card, or two within the NUMA node of
three. So each site has a table of least costs, by the number of taken VFs (v) and of devices with one pair more (e). The table
of a site is combined from those of its two halves. A worst distance d means that no pair leaves a site of level d, so that
there s = c. Tables are cached by the cards of their site, for the next set of cards.

A cost is one integer with four parts, all of which add up over sites. They are the VFs that the pod does not have at another
time anyway; the sum of distances; the load, which for each VF is the number of VFs of its PF taken before it; and less 2^k for
each VF, the most for the lowest address. So of equal costs the lowest list of addresses is the least, and the VFs can be read
from the cost.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from central.request.model import RdmaPolicy
from central.search.topology import Distance, NodeTopology, Site, bits

_LOAD_BITS: Final = 40
_SUM_BITS: Final = 24
_V: Final = 1 << 16  # a table's key is v * _V + e

_Table = Mapping[int, int]  # least cost by v * _V + e


class FreeVfs(NamedTuple):
    """Hold the VFs of one node that a container may get. Bit masks are by the topology's numbers."""

    free: int = 0  # VFs that are free for this container
    again: int = 0  # free VFs that the pod has at another time
    taken: tuple[int, ...] = ()  # number of VFs that other pods and this pod have, by PF
    ports: int = 0  # PFs with a usable VF


class Choice:
    """Choose the VFs of one container in one site. `cards` is the container's number of cards; `count` is its number of VFs, as
    the policy counts them."""

    def __init__(self, topology: NodeTopology, site: Site, policy: RdmaPolicy, cards: int, count: int, vfs: FreeVfs) -> None:
        self._site = site
        self._per_switch = policy is RdmaPolicy.PER_SWITCH
        self._paired = policy is RdmaPolicy.NEAREST and cards > 0 and count > 0
        self._count = count
        self._cards = cards
        self._pairs_a_card, self._pairs_a_vf = max(1, count // max(1, cards)), max(1, cards // max(1, count))
        self._one_more = max(cards, count) % max(1, min(cards, count))
        self._by_card = count >= cards  # whether cards, not VFs, may have one pair more
        self._numbers = _numbers(topology, site, vfs, count)
        self._bits = len(self._numbers)
        self._ports = _ports(topology, site, vfs, self._numbers, count, self._bits)
        self._tables: dict[tuple[int, int, int], _Table] = {}
        self._by_site: dict[int, Sequence[int]] = {}
        self._anywhere = None if self._paired or self._per_switch else self._cost_anywhere(policy, vfs.ports)

    # ---- the cost

    def cost(self, cards: int, level: int) -> int | None:
        """Return the least cost with these cards and a worst distance of at most `level`; None if there is no such choice. If
        the policy ignores distances, all of them count as SWITCH."""
        if self._paired:
            return self._cost_of_pairs(cards, min(level, self._site.levels[-1]))
        return self._cost_by_switch(cards) if self._per_switch else self._anywhere

    def vfs(self, cost: int) -> int:
        """Return the VFs of a choice with this cost, as a bit mask."""
        chosen = -cost & ((1 << self._bits) - 1)
        return sum(1 << self._numbers[self._bits - 1 - place] for place in bits(chosen))

    def without_address(self, cost: int) -> int:
        """Return the part of the cost that is compared before the addresses of cards."""
        return -(-cost >> self._bits)

    def least(self) -> tuple[int, int]:
        """Return a lower bound of the number of new VFs, and of the load, over all choices. A VF on each switch means at least
        one VF."""
        cost = self._anywhere
        if cost is None:
            each = [cost - before for costs in self._ports.values() for before, cost in pairwise(costs)]
            cost = sum(sorted(each)[: self._count])
        compared = self.without_address(cost)
        return self.new(compared), self.load(compared)

    @staticmethod
    def new(compared: int) -> int:
        return compared >> _LOAD_BITS + _SUM_BITS

    @staticmethod
    def distances(compared: int) -> int:
        return compared >> _LOAD_BITS & (1 << _SUM_BITS) - 1

    @staticmethod
    def load(compared: int) -> int:
        return compared & (1 << _LOAD_BITS) - 1

    # ---- quick tests by numbers

    def suffice(self) -> bool:
        """Return False if the site has too few VFs for any cards."""
        if self._paired:
            return sum(len(costs) - 1 for costs in self._ports.values()) >= self._count
        return self._per_switch or self._anywhere is not None

    def could_be_within(self, groups: Sequence[Site], cards: int) -> bool:
        """Return False if some pair must leave its group, whichever of these cards are taken. The test uses numbers alone, so
        that it may return True in such a case."""
        if not self._paired:
            return True
        each = self._pairs_a_card if self._by_card else self._pairs_a_vf
        most = each + (1 if self._one_more else 0)
        gains: list[int] = []  # devices of the other kind gained by each further card, or VF, of a group
        for group in groups:
            some = (group.cards & cards).bit_count()
            if some:
                free = sum(len(self._ports[port]) - 1 for port in group.ports)
                few, many = (min(some, free // each), free) if self._by_card else (free, some)
                gains += [min(many, k * most) - min(many, (k - 1) * most) for k in range(1, few + 1)]
        taken, wanted = (self._cards, self._count) if self._by_card else (self._count, self._cards)
        return len(gains) >= taken and sum(sorted(gains, reverse=True)[:taken]) >= wanted

    def useless_cards(self) -> int:
        """Return the cards that cannot be in any choice: for a VF on each switch, cards below a switch with too few VFs."""
        if not self._per_switch:
            return 0
        return sum(switch.cards for switch in _switches(self._site) if len(self._any_of(switch)) <= self._count)

    # ---- tables

    def _cost_of_pairs(self, cards: int, level: int) -> int | None:
        """Return the least cost of all requested VFs and all devices with one pair more, for any division between the two
        halves of the site; None if there is no such choice."""
        all_of_them = self._count * _V + self._one_more
        if not self._site.children:
            return self._table(self._site, cards, level).get(all_of_them)
        one, other = (self._table(child, cards, level) for child in self._site.children)
        costs = [cost + other[all_of_them - key] for key, cost in one.items() if all_of_them - key in other]
        return min(costs, default=None)

    def _table(self, site: Site, cards: int, level: int) -> _Table:
        key = site.number, cards & site.cards, level
        table = self._tables.get(key)
        if table is None:
            if site.children:
                one, other = site.children
                table = self._together(self._table(one, cards, level), self._table(other, cards, level))
            else:
                table = self._of_leaf(site, key[1].bit_count())
            table = self._tables[key] = self._at(site, key[1].bit_count(), level, table)
        return table

    def _of_leaf(self, site: Site, cards: int) -> _Table:
        costs = self._any_of(site)
        if self._by_card:
            more = range(min(cards, self._one_more) + 1)
            return {v * _V + e: cost for v, cost in enumerate(costs) for e in more}
        return {v * _V + e: cost for v, cost in enumerate(costs) for e in range(min(v, self._one_more) + 1)}

    def _together(self, one: _Table, other: _Table) -> _Table:
        table: dict[int, int] = {}
        for key, cost in one.items():
            for more, and_cost in other.items():
                both = key + more
                if both // _V > self._count or both % _V > self._one_more:
                    continue
                total = cost + and_cost
                if both not in table or total < table[both]:
                    table[both] = total
        return table

    def _at(self, site: Site, cards: int, level: int, table: _Table) -> _Table:
        """Return the table of a site with the cost of the pairs that leave the site; at `level`, drop entries with such pairs
        instead."""
        below = sum(1 for its in site.levels if its < level)
        if level in site.levels:
            return {key: cost for key, cost in table.items() if not self._left_over(key, cards)}
        if not below:
            return table
        weight = below << self._bits + _LOAD_BITS
        return {key: cost + weight * max(0, self._left_over(key, cards)) for key, cost in table.items()}

    def _left_over(self, key: int, cards: int) -> int:
        """Return the number of VF ends in a site, less the number of its cards' ends."""
        v, e = divmod(key, _V)
        if self._by_card:
            return v - cards * self._pairs_a_card - e
        return v * self._pairs_a_vf + e - cards

    def _any_of(self, site: Site) -> Sequence[int]:
        """Return the least cost of v VFs of a site, by v, regardless of their distances."""
        costs = self._by_site.get(site.number)
        if costs is None:
            costs = [0]
            for port in site.ports:
                costs = _convolved(costs, self._ports[port], self._count)
            self._by_site[site.number] = costs
        return costs

    # ---- policies that ignore distances

    def _cost_by_switch(self, cards: int) -> int | None:
        total = 0
        for switch in _switches(self._site):
            if switch.cards & cards:
                costs = self._any_of(switch)
                if len(costs) <= self._count:
                    return None
                total += costs[self._count]
        return total

    def _cost_anywhere(self, policy: RdmaPolicy, usable: int) -> int | None:
        if policy is RdmaPolicy.PER_PF:
            ports = [self._ports[port] for port in self._site.ports if usable >> port & 1]
            if not ports and self._count:
                return None
            return None if any(len(costs) <= self._count for costs in ports) else sum(costs[self._count] for costs in ports)
        costs: Sequence[int] = [0]
        for port in self._site.ports:
            costs = _convolved(costs, self._ports[port], self._count)
        return costs[self._count] if self._count < len(costs) else None


def _switches(site: Site) -> Sequence[Site]:
    """Return the groups of devices below one root port each; a device of an unknown place, or on no root port, is a separate
    group."""
    if Distance.SWITCHES in site.levels:
        return (site,)
    return [switch for child in site.children for switch in _switches(child)]


def _numbers(topology: NodeTopology, site: Site, vfs: FreeVfs, count: int) -> Sequence[int]:
    """Return the VFs that may be chosen, ascending: of each PF at most `count`, preferring those that the pod has anyway."""
    numbers: list[int] = []
    if not count:
        return numbers
    wanted = set(site.ports)
    had = dict.fromkeys(site.ports, 0)
    for number in (*bits(vfs.again), *bits(vfs.free & ~vfs.again)):
        port = topology.port_of[number]
        if port in wanted and had[port] < count:
            had[port] += 1
            numbers.append(number)
    return sorted(numbers)


def _ports(
    topology: NodeTopology, site: Site, vfs: FreeVfs, numbers: Sequence[int], count: int, bits: int
) -> Mapping[int, Sequence[int]]:
    """Return, for each PF, the least cost of v of its VFs, by v."""
    by_port: dict[int, list[tuple[bool, int, int]]] = {}
    for place, number in enumerate(numbers):
        new = not vfs.again >> number & 1
        by_port.setdefault(topology.port_of[number], []).append((new, place, number))
    costs: dict[int, Sequence[int]] = {port: [0] for port in site.ports}
    for port, some in by_port.items():
        of_port = [0]
        load = vfs.taken[port]
        for new, place, _ in sorted(some)[:count]:
            cost = of_port[-1] - (1 << bits - 1 - place)
            if new:
                cost += (1 << bits + _LOAD_BITS + _SUM_BITS) + (load << bits)
                load += 1
            of_port.append(cost)
        costs[port] = of_port
    return costs


def _convolved(one: Sequence[int], other: Sequence[int], most: int) -> list[int]:
    size = min(len(one) + len(other) - 1, most + 1)
    return [
        min(one[k] + other[v - k] for k in range(max(0, v - len(other) + 1), min(v, len(one) - 1) + 1)) for v in range(size)
    ]


def in_pairs(topology: NodeTopology, cards: Sequence[int], vfs: Sequence[int]) -> Sequence[int]:
    """Return the VFs in the order of their cards: the n-th VF is beside the n-th card, then follows each card's second VF.
    Pairs are made from the closest level up."""
    of_card: list[list[int]] = [[] for _ in cards]
    left = list(vfs)
    most = -(-len(vfs) // max(1, len(cards)))
    for level in Distance:
        for rank, card in enumerate(cards):
            near = [vf for vf in left if topology.distances[card][topology.port_of[vf]] <= level]
            taken = near[: most - len(of_card[rank])]
            of_card[rank] += taken
            left = [vf for vf in left if vf not in taken]
    return [one[turn] for turn in range(most) for one in of_card if turn < len(one)] + left
