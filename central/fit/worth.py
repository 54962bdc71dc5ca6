"""Weigh what is left on a node by what pods could do with it: the sum of four terms, nearly all lookups in tables.

It takes a workload, the kinds of nodes, and the weights of the terms; then what nodes have left. It returns milli of cards,
times MASS, weighted. The time for a term grows with the number of a node's cards, not with that of the kinds of pods: the sums
over these are in the tables.

*Usable* is the opposite of the fragments of Weng et al.: of a node's free parts, those that a pod drawn at random could use,
for the node has the cpu and memory for it, cards of its model, enough left of this card, or enough cards that are free as a
whole. With A(f) the mass of the shares that suit the node and ask for f or less of a card, B(n) that of the pods that ask for n
or fewer whole cards,

    usable = sum over cards of free * (A(free) + [card is full] * B(number of full cards))

*Cut* adds up what the rest of each card is worth to shares (cutting.py).

*Fed* is the part of the free cards for which the cpu would last, if pods of one kind took all of it, on average over the kinds:
min(free, cpu left * milli per cpu of the pod). Cpu that goes to a node without free cards costs nothing here, and cards
that no pod can use for lack of cpu are worth nothing.

*Together* is the square of the milli that are free: a card is worth the more, the more are free beside it.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 4, for the first.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from central.fit.columns import FULL, Ints, Kind, States, milli_requested
from central.fit.cutting import WHOLE, worth_of_rests
from central.fit.scarcity import NUMBERS, OFTEN, Factors, Groups
from central.fit.workload import MASS, PodKind, Workload

MOST_CARDS: Final = 64  # of a node, that the tables tell apart
MOST_AMOUNTS: Final = 64  # of cpu, of memory, or of a card: what lies between is taken for the next higher
MOST_SIZES: Final = 32  # of shares
_MOST: Final = 1 << 26  # milli of cpu, or MiB: more feeds any number of cards
_FINE: Final = 4096  # parts of a unit of it for a milli of a card; so fine it stays below _OFFSET
_RESOURCES: Final = range(2)  # as in CpuMemory: cpu, memory
_OFFSET: Final = 1 << 40  # between the ratios of two kinds of nodes


class Weights(NamedTuple):
    """The weights of the terms. They are in the tables, so that they cost nothing where scores are made."""

    cut: int = 1
    usable: int = 1
    fed_by_cpu: int = 1
    fed_by_memory: int = 1
    together: int = 0


_ONE_EACH: Final = Weights()


class Tables:
    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[Kind],
        cards: Sequence[int],
        factors: Factors,
        *,
        turnover: float = 0.0,
        most_cards: int,
        weigh: Weights = _ONE_EACH,
    ) -> None:
        """Make the tables. `cards` is the number of cards in the cluster, by kind of node; `most_cards` is the largest number
        of cards on any node. `factors` are those of the pods that ask for several cards at once; the higher the turnover,
        from 0 to 1, the less they count, and the less of the pods' memory counts for what is usable."""
        self.kinds = tuple(kinds)
        self.most_cards = most_cards
        self._pods = [one for one, _ in workload.kinds]
        self._masses = [mass for _, mass in workload.kinds]
        self._needs = [[_need(one, kind) for one in self._pods] for kind in self.kinds]
        self._cpu = _amounts([one.cpu_memory.cpu_milli for one in self._pods])
        memory = [round((1 - turnover) * one.cpu_memory.memory_mib) for one in self._pods]
        self._memory = _amounts(memory)
        self._weights = [weigh.usable * weight for weight in _weights(workload, self.kinds, cards, factors, turnover)]
        self._often = weigh.usable * OFTEN
        self._together = weigh.together
        self._shares, self._wholes, self._rank_of_milli = self._make_usable(memory)
        self._rests = weigh.cut * np.array([self._make_rests(needs) for needs in self._needs], np.int64)
        self._feeding = Feeding(
            [[one.cpu_memory[resource] for one in self._pods] for resource in _RESOURCES],
            [[by * mass for mass in self._masses] for by in (weigh.fed_by_cpu, weigh.fed_by_memory)],
            self._needs,
        )

    def worth(self, states: States) -> Ints:
        """Return the sum of the four terms."""
        worth: Ints = self.cut(states) + self.usable(states) + self.fed(states).sum(0)
        if self._together:
            worth += self._together * states.free.sum(1) ** 2
        return worth

    def usable(self, states: States) -> Ints:
        free, kind = states.free, states.kind
        cpu = self._cpu.searchsorted(states.left[0], "right")
        memory = self._memory.searchsorted(states.left[1], "right")
        full = (free == FULL).sum(1)
        rank = self._rank_of_milli[kind[:, None], free]
        shares = self._shares[kind[:, None], cpu[:, None], memory[:, None], rank]
        wholes = self._wholes[kind, cpu, memory, np.minimum(full, MOST_CARDS)]
        answer: Ints = (free * shares).sum(1) + FULL * full * wholes
        return answer

    def cut(self, states: States) -> Ints:
        answer: Ints = self._rests[states.kind[:, None], states.free].sum(1)
        return answer

    def fed(self, states: States) -> Ints:
        """Return for how much of the free cards the rest of the cpu would last, and the rest of the memory: an array [2, n],
        weighted."""
        return self._feeding.fed(states.kind, states.free.sum(1), states.left)

    def _make_usable(self, memory_mib: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """Return two tables of weights, and the ranks of milli. The tables have the kind of node and the ranks of its cpu and
        memory as indices; the first one, of shares, then the rank of what is free of a card, the second one the number of full
        cards."""
        cpu = np.searchsorted(self._cpu, [one.cpu_memory.cpu_milli for one in self._pods]) + 1
        memory = np.searchsorted(self._memory, memory_mib) + 1
        gpus, weights = np.array([one.gpus for one in self._pods], np.int64), np.array(self._weights, np.int64)
        steps = [_amounts([need for need in needs if 0 < need <= FULL]) for needs in self._needs]
        size = len(self.kinds), len(self._cpu) + 1, len(self._memory) + 1
        shares = np.zeros((*size, max(map(len, steps), default=0) + 1), np.int64)
        told_apart = min(self.most_cards, MOST_CARDS)
        wholes = np.zeros((*size, told_apart + 1), np.int64)  # whatever models are named together
        ranks = np.zeros((len(self.kinds), FULL + 1), np.int64)
        for number, (kind, needs) in enumerate(zip(self.kinds, self._needs, strict=True)):
            ranks[number] = np.searchsorted(steps[number], np.arange(FULL + 1), "right")
            suits = np.array([not one.models or kind.model in one.models for one in self._pods], np.bool_)
            whole = suits & (gpus > 0) & (gpus <= self.most_cards)
            np.add.at(wholes[number], (cpu[whole], memory[whole], np.minimum(gpus[whole], told_apart)), weights[whole])
            needed = np.array(needs, np.int64)
            some = suits & (gpus == 0) & (needed > 0)
            step = steps[number].searchsorted(needed[some]) + 1
            np.add.at(shares[number], (cpu[some], memory[some], step), weights[some])
        for number in set(NUMBERS) - {one.gpus for one in self._pods}:
            if number <= told_apart:
                wholes[:, 0, 0, number] += self._often
        for table in (shares, wholes):
            for axis in (1, 2, 3):
                np.cumsum(table, axis=axis, out=table)
        return shares, wholes, ranks

    def _make_rests(self, needs: Sequence[int]) -> Ints:
        """Return what a rest of a card is worth, by its milli, for shares that need so many milli each."""
        demand: dict[int, float] = {}
        for one, need, mass in zip(self._pods, needs, self._masses, strict=True):
            if need and not one.gpus:
                percent = -(-need * WHOLE // FULL)
                demand[percent] = demand.get(percent, 0.0) + mass
        worth = worth_of_rests(_of_few_sizes(demand))[np.arange(FULL + 1) * WHOLE // FULL]
        return np.rint(worth * FULL * MASS).astype(np.int64)


def _weights(workload: Workload, kinds: Sequence[Kind], cards: Sequence[int], factors: Factors, turnover: float) -> list[int]:
    """Return the masses of pods by which cards are usable, weighted by how few places there are for the pods. Every number of
    cards above one counts as if it came OFTEN at least. Where the cluster is filled pods have the factors of scarcity.py; with
    a turnover these go to the power of the rest to 1, and the ratio of all cards to those of a pod's models to its power."""
    groups = Groups(workload)
    weights = []
    for (one, mass), group in zip(workload.kinds, groups.of_kind, strict=True):
        weight, factor = float(mass), factors[group]
        if one.gpus > 1:
            number = groups.of_number[one.gpus]
            weight *= max(OFTEN, number) / number
            factor *= number / groups.mass[group]
        if one.models:
            suitable = sum(count for kind, count in zip(kinds, cards, strict=True) if kind.model in one.models)
            weight *= (sum(cards) / suitable) ** turnover if suitable else 0.0
        weights.append(round(weight * factor ** (1 - turnover)))
    return weights


class Feeding:
    """The part of the free cards for which the remaining CPU is enough, and that for which the remaining memory is."""

    def __init__(self, asked: Sequence[Sequence[int]], masses: Sequence[Sequence[int]], needs: Sequence[Sequence[int]]) -> None:
        """Make the tables. `asked` and `masses`, by resource and kind of pod, are how much it asks for, and its mass. `needs`,
        by kind of node and kind of pod, are milli of cards."""
        made = [_ratios(*of_resource, of_kind) for of_resource in zip(asked, masses, strict=True) for of_kind in needs]
        self._of_resource = len(needs) * np.arange(len(asked))[:, None]  # its first table: there is one for a kind of node
        self._ratios = np.concatenate([number * _OFFSET + ratios for number, (ratios, _, _) in enumerate(made)])
        self._enough = np.concatenate([enough for _, enough, _ in made])
        self._rates = np.concatenate([rates for _, _, rates in made])

    def fed(self, kind: Ints, free: Ints, left: Ints) -> Ints:
        """Return for how much of the free cards what is left would last, by resource and node. `left` has the same shape: [2,
        n]."""
        table = self._of_resource + kind
        left = np.minimum(np.maximum(left, 0), _MOST)
        ratio = left * _FINE // np.maximum(free, 1)
        at = self._ratios.searchsorted(table * _OFFSET + ratio, "right") + table
        answer: Ints = free * self._enough[at] + left * self._rates[at]
        return answer


def _ratios(asked: Sequence[int], masses: Sequence[int], needs: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return the ratios of resource to cards from which on a pod finds enough for all cards, ascending; and, with none, one,
    two … of them reached: the mass of the pods that find enough, and the milli of cards that one unit feeds for the others."""
    pods = sorted(
        (min(-(-amount * _FINE // need), _OFFSET - 1), mass, mass * need // max(1, amount))
        for amount, mass, need in zip(asked, masses, needs, strict=True)
        if need
    )
    columns = np.array(pods, np.int64).reshape(-1, 3)
    enough = np.concatenate([[0], np.cumsum(columns[:, 1])])
    rates = np.concatenate([[0], np.cumsum(columns[:, 2])])
    return columns[:, 0], enough, rates[-1] - rates


def _need(one: PodKind, kind: Kind) -> int:
    """Return how much a pod asks for, in milli of cards of this kind; 0 if it asks for no card, or for a share that none of
    them has."""
    if one.cpu_only:
        return 0
    need = one.gpus * FULL if one.gpus else milli_requested(kind.size_mib, one.memory_mib, one.core_percent)
    return need if one.gpus or need <= FULL else 0


def _of_few_sizes(demand: Mapping[int, float]) -> Mapping[int, float]:
    """Return the most frequent sizes; one between them counts as the next larger. The number of patterns grows with them."""
    if len(demand) <= MOST_SIZES:
        return demand
    kept = sorted(sorted(demand, key=lambda size: (-demand[size], size))[:MOST_SIZES])
    few = dict.fromkeys(kept, 0.0)
    for size, often in demand.items():
        few[kept[min(bisect_left(kept, size), len(kept) - 1)]] += often
    return few


def _amounts(asked: Sequence[int]) -> Ints:
    """Return the different amounts, ascending. If there are more than MOST_AMOUNTS, return so many of them, the largest
    included."""
    different = np.unique(np.array(asked, np.int64))
    if len(different) > MOST_AMOUNTS:
        different = different[np.linspace(0, len(different) - 1, MOST_AMOUNTS).round().astype(np.int64)]
    return different
