"""Compute the value of a node's free capacity from what pods could do with it: the sum of four terms, nearly all table lookups.

Take a workload, the kinds of nodes and the weights of the terms, then the free capacity of nodes. Return the weighted value in
milli of cards, times MASS. The tables contain the sums over the kinds of pods, so that the time for a term grows only with the
number of a node's cards.

*Usable* is the opposite of the fragments of Weng et al.: the free parts of a node that a pod drawn at random could use. The
node must have the cpu and memory, cards of the pod's model, and enough left of this card or enough whole free cards. Let A(f)
be the mass of the shares that suit the node and request at most f of a card. Let B(n) be the mass of the pods that request at
most n whole cards. Then

    usable = sum over cards of free * (A(free) + [card is full] * B(number of full cards))

*Cut* adds up the value of each card's remainder for shares (cutting.py).

*Fed* is the part of the free cards for which the cpu lasts if all pods are of one kind, averaged over the kinds: min(free, cpu
left * milli per cpu of the pod). Cpu that goes to a node without free cards costs nothing here, and cards that no pod can use
for lack of cpu are worth nothing.

*Together* is the square of the free milli: a card is worth more if more cards are free beside it.

Source of *usable*: Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 4.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from central.rank.columns import FULL, Ints, Kind, States, milli_requested
from central.rank.cutting import WHOLE, worth_of_rests
from central.rank.scarcity import NUMBERS, OFTEN, Factors, WorkloadGroups
from central.rank.workload import MASS, ExpectedWorkload, PodKind

MOST_CARDS: Final = 64  # maximum number of cards of a node that the tables distinguish
MOST_AMOUNTS: Final = 64  # maximum distinct amounts of cpu, memory or a card; others are rounded up to the next
MOST_SIZES: Final = 32  # maximum number of distinct share sizes
_MOST: Final = 1 << 26  # maximum milli of cpu, or MiB; any more is enough for all cards of a node
_FINE: Final = 4096  # resolution of resource-to-card ratios; they stay below _OFFSET
_RESOURCES: Final = range(2)  # indices of CpuMemory: 0 cpu, 1 memory
_OFFSET: Final = 1 << 40  # distance between the ratios of two kinds of nodes in one sorted array


class Weights(NamedTuple):
    """Hold the weights of the four terms. The tables contain the weights, so that they cost nothing when scores are
    computed."""

    cut: int = 1
    usable: int = 1
    fed_by_cpu: int = 1
    fed_by_memory: int = 1
    together: int = 0


_ONE_EACH: Final = Weights()


class Tables:
    def __init__(
        self,
        workload: ExpectedWorkload,
        kinds: Sequence[Kind],
        cards: Sequence[int],
        factors: Factors,
        *,
        turnover: float = 0.0,
        most_cards: int,
        weigh: Weights = _ONE_EACH,
    ) -> None:
        """Build the tables. `cards` is the number of cards in the cluster, by kind of node; `most_cards` is the largest number
        of cards on any node. `factors` are those of pods that request several cards at once. A higher `turnover`, from 0 to 1,
        lowers the effect of the factors, and of the pods' memory on the usable term."""
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
        """Return the weighted sum of the four terms for each state."""
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
        """Return the part of the free cards for which the remaining cpu would last, and the remaining memory: an array [2, n],
        weighted."""
        return self._feeding.fed(states.kind, states.free.sum(1), states.left)

    def _make_usable(self, memory_mib: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """Return two tables of weights, and the ranks of milli. Both tables are indexed by the kind of node and the ranks of
        its cpu and memory. The last index of the first table, for shares, is the rank of a card's free milli; that of the
        second is the number of full cards."""
        cpu = np.searchsorted(self._cpu, [one.cpu_memory.cpu_milli for one in self._pods]) + 1
        memory = np.searchsorted(self._memory, memory_mib) + 1
        gpus, weights = np.array([one.gpus for one in self._pods], np.int64), np.array(self._weights, np.int64)
        steps = [_amounts([need for need in needs if 0 < need <= FULL]) for needs in self._needs]
        size = len(self.kinds), len(self._cpu) + 1, len(self._memory) + 1
        shares = np.zeros((*size, max(map(len, steps), default=0) + 1), np.int64)
        distinct = min(self.most_cards, MOST_CARDS)
        wholes = np.zeros((*size, distinct + 1), np.int64)  # one table for all sets of requested models
        ranks = np.zeros((len(self.kinds), FULL + 1), np.int64)
        for number, (kind, needs) in enumerate(zip(self.kinds, self._needs, strict=True)):
            ranks[number] = np.searchsorted(steps[number], np.arange(FULL + 1), "right")
            suits = np.array([not one.models or kind.model in one.models for one in self._pods], np.bool_)
            whole = suits & (gpus > 0) & (gpus <= self.most_cards)
            np.add.at(wholes[number], (cpu[whole], memory[whole], np.minimum(gpus[whole], distinct)), weights[whole])
            needed = np.array(needs, np.int64)
            some = suits & (gpus == 0) & (needed > 0)
            step = steps[number].searchsorted(needed[some]) + 1
            np.add.at(shares[number], (cpu[some], memory[some], step), weights[some])
        for number in set(NUMBERS) - {one.gpus for one in self._pods}:
            if number <= distinct:
                wholes[:, 0, 0, number] += self._often
        for table in (shares, wholes):
            for axis in (1, 2, 3):
                np.cumsum(table, axis=axis, out=table)
        return shares, wholes, ranks

    def _make_rests(self, needs: Sequence[int]) -> Ints:
        """Return the value of a card's remainder, by its milli, for shares that need `needs` milli each."""
        demand: dict[int, float] = {}
        for one, need, mass in zip(self._pods, needs, self._masses, strict=True):
            if need and not one.gpus:
                percent = -(-need * WHOLE // FULL)
                demand[percent] = demand.get(percent, 0.0) + mass
        worth = worth_of_rests(_of_few_sizes(demand))[np.arange(FULL + 1) * WHOLE // FULL]
        return np.rint(worth * FULL * MASS).astype(np.int64)


def _weights(
    workload: ExpectedWorkload, kinds: Sequence[Kind], cards: Sequence[int], factors: Factors, turnover: float
) -> list[int]:
    """Return the weight of each kind of pods in the usable term: its mass, raised if few places are left for such pods.

    Every number of cards above one counts as if pods with it had a mass of at least OFTEN. Without a turnover, pods have the
    factors of scarcity.py. With a turnover t, these factors are raised to the power of 1 - t. The ratio of all cards to the
    cards of a pod's models is raised to the power of t."""
    groups = WorkloadGroups(workload)
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
    """Compute the part of the free cards for which the remaining CPU is enough, and the same for memory."""

    def __init__(
        self, requested: Sequence[Sequence[int]], masses: Sequence[Sequence[int]], needs: Sequence[Sequence[int]]
    ) -> None:
        """Build the tables. `requested` and `masses` have the requested amounts and the masses, by resource and kind of pod.
        `needs`, by kind of node and kind of pod, are milli of cards."""
        made = [_ratios(*of_resource, of_kind) for of_resource in zip(requested, masses, strict=True) for of_kind in needs]
        self._of_resource = len(needs) * np.arange(len(requested))[:, None]  # index of a resource's first table
        self._ratios = np.concatenate([number * _OFFSET + ratios for number, (ratios, _, _) in enumerate(made)])
        self._enough = np.concatenate([enough for _, enough, _ in made])
        self._rates = np.concatenate([rates for _, _, rates in made])

    def fed(self, kind: Ints, free: Ints, left: Ints) -> Ints:
        """Return the part of the free cards for which the remaining amounts (`left`) would last, by resource and node. `left`
        and the result have the shape [2, n]."""
        table = self._of_resource + kind
        left = np.minimum(np.maximum(left, 0), _MOST)
        ratio = left * _FINE // np.maximum(free, 1)
        at = self._ratios.searchsorted(table * _OFFSET + ratio, "right") + table
        answer: Ints = free * self._enough[at] + left * self._rates[at]
        return answer


def _ratios(requested: Sequence[int], masses: Sequence[int], needs: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return three arrays for one resource and one kind of node.

    The first has, ascending, the ratio of resource to cards from which on each kind of pod finds enough for all cards. The
    others are indexed by the number of ratios reached, from 0: the mass of the pods that find enough, and the milli of cards
    that one unit feeds for the other pods."""
    pods = sorted(
        (min(-(-amount * _FINE // need), _OFFSET - 1), mass, mass * need // max(1, amount))
        for amount, mass, need in zip(requested, masses, needs, strict=True)
        if need
    )
    columns = np.array(pods, np.int64).reshape(-1, 3)
    enough = np.concatenate([[0], np.cumsum(columns[:, 1])])
    rates = np.concatenate([[0], np.cumsum(columns[:, 2])])
    return columns[:, 0], enough, rates[-1] - rates


def _need(one: PodKind, kind: Kind) -> int:
    """Return a pod's request in milli of cards of this kind; 0 if it requests no card, or a share too large for any such
    card."""
    if one.cpu_only:
        return 0
    need = one.gpus * FULL if one.gpus else milli_requested(kind.size_mib, one.memory_mib, one.core_percent)
    return need if one.gpus or need <= FULL else 0


def _of_few_sizes(demand: Mapping[int, float]) -> Mapping[int, float]:
    """Reduce the demand to the MOST_SIZES most frequent sizes; other sizes count as the next larger one. The number of patterns
    grows with the number of sizes."""
    if len(demand) <= MOST_SIZES:
        return demand
    kept = sorted(sorted(demand, key=lambda size: (-demand[size], size))[:MOST_SIZES])
    few = dict.fromkeys(kept, 0.0)
    for size, often in demand.items():
        few[kept[min(bisect_left(kept, size), len(kept) - 1)]] += often
    return few


def _amounts(requested: Sequence[int]) -> Ints:
    """Return the distinct amounts, ascending; if there are more than MOST_AMOUNTS, a sample of that many with the largest
    included."""
    different = np.unique(np.array(requested, np.int64))
    if len(different) > MOST_AMOUNTS:
        different = different[np.linspace(0, len(different) - 1, MOST_AMOUNTS).round().astype(np.int64)]
    return different
