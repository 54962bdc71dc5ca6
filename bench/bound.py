"""Bound how much of the GPUs any scheduler could give out, by a linear relaxation.

Pods are a fluid. Of each kind of node (cpu, memory, cards, model) all nodes together are one, with that much cpu, memory and
cards; a fluid of pods of each kind flows onto the kinds of nodes on one of which such a pod would fit. Not relaxed is how
shares fill a card: a card that serves shares is cut by one of the *patterns* of shares that a card can hold, so that two shares
of 60 % take two cards; and a node of 8 cards has room for one pod of 8 cards, two of 4, four of 2. What is placed by any
scheduler can be placed here, so that the optimum is an upper bound; how closely a scheduler can meet it is not known.

    at a load   the most GPU that can be allocated of pods that ask for so much, in the proportions of the workload; a scheduler
                may choose which to turn away, which no policy of the replay may
    saturation  the load up to which all of them can be placed that fit on some empty node

Patterns are found as in the cutting-stock problem: the optimum for some of them has prices of shares, and a card is better cut
by another pattern if the knapsack over these prices is worth more than a card.

Source: Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock Problem, 1961.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from lading.errors import HostError
from simulate.cluster import Floats
from simulate.trace import FULL, PERCENT, Trace, TracePod

_SIZES: Final = (2, 4, 8)  # cards of pods of which a node has room for a limited number only
_SCALE: Final = 1000.0  # cores instead of milli, GiB instead of MiB: values of similar magnitude
_BETTER: Final = 1e-7
_PER_CARD: Final = FULL // PERCENT

Pattern = tuple[int, ...]  # number of shares of each size


class NodeKind(NamedTuple):
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Demand(NamedTuple):
    pod: TracePod
    pods: float  # number of pods at load 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Hold upper bounds of the allocated GPUs, in percent of all GPUs."""

    at_load: dict[float, float]
    saturation: float


def compute_bound(trace: Trace, loads: Sequence[float]) -> Bound:
    program = _Program(trace)
    return Bound(at_load={load: 100 * program.most_allocated(load) for load in loads}, saturation=100 * program.saturation())


class _Program:
    """Build and solve the linear program for the bounds.

    Rows: cpu, memory and cards of each kind of node, places for pods of several cards, shares of each size; then a row for
    each kind of pod. Columns: pods of a kind on nodes of a kind; cards of a kind of node that are divided by a pattern; and
    the load as the last column.
    """

    def __init__(self, trace: Trace) -> None:
        counts = Counter(trace.pods)
        asked = sum(pod.milli * count for pod, count in counts.items())
        self._capacity = trace.capacity
        self._demands = [Demand(pod, count * trace.capacity / asked) for pod, count in counts.items()]
        self._nodes = Counter(NodeKind(node.cpu_milli, node.memory_mib, node.gpus, node.model) for node in trace.nodes)
        self._kinds = list(self._nodes)
        self._shares = sorted({pod.share // PERCENT for pod in counts if pod.share})
        self._patterns: list[Pattern] = [self._alone(number) for number in range(len(self._shares))]
        self._flows = [
            (kind, number)
            for kind, node in enumerate(self._kinds)
            for number, (pod, _) in enumerate(self._demands)
            if _fits(node, pod)
        ]
        self._placeable = {number for _, number in self._flows}
        self._per_kind = 3 + len(_SIZES) + len(self._shares)

    def most_allocated(self, load: float) -> float:
        """Return the maximum of the GPUs that can be allocated at this load, as a fraction of the capacity."""
        worth = [-self._demands[number].pod.milli / self._capacity for _, number in self._flows]
        limits = [load * demand.pods for demand in self._demands]
        return self._solve(worth, limits, of_load=0.0, exact=False)

    def saturation(self) -> float:
        return self._solve([0.0] * len(self._flows), [0.0] * len(self._demands), of_load=-1.0, exact=True)

    def _solve(self, worth: Sequence[float], limits: Sequence[float], *, of_load: float, exact: bool) -> float:
        """Solve the linear program. `exact`: place all pods of a load, which is a variable; else place at most `limits` pods of
        each kind."""
        while True:
            rows = self._per_kind * len(self._kinds)
            matrix = self._matrix(with_load=exact)
            costs = np.array([*worth, *[0.0] * len(self._kinds) * len(self._patterns), of_load])
            nodes, pods = matrix[:rows], matrix[rows:]
            if exact:
                result = linprog(costs, A_ub=nodes, b_ub=self._has(), A_eq=pods, b_eq=limits, method="highs")
            else:
                result = linprog(costs, A_ub=matrix, b_ub=[*self._has(), *limits], method="highs")
            if result.status != 0:
                raise HostError(f"cannot compute the bound: {result.message}")
            more = set(self._better_patterns(-result.ineqlin.marginals)) - set(self._patterns)
            if not more:
                return float(-result.fun)
            self._patterns += sorted(more)

    def _has(self) -> list[float]:
        has: list[float] = []
        for kind in self._kinds:
            count = self._nodes[kind]
            has += [kind.cpu_milli * count / _SCALE, kind.memory_mib * count / _SCALE, kind.gpus * count]
            has += [kind.gpus // size * count for size in _SIZES]
            has += [0.0] * len(self._shares)
        return has

    def _matrix(self, *, with_load: bool) -> csr_array:
        entries = list(self._entries(with_load=with_load))
        rows, columns, values = zip(*entries, strict=True)
        height = self._per_kind * len(self._kinds) + len(self._demands)
        width = len(self._flows) + len(self._kinds) * len(self._patterns) + 1
        return csr_array((values, (rows, columns)), shape=(height, width))

    def _entries(self, *, with_load: bool) -> Iterator[tuple[int, int, float]]:
        first_share, first_pod = 3 + len(_SIZES), self._per_kind * len(self._kinds)
        for column, (kind, number) in enumerate(self._flows):
            pod, row = self._demands[number].pod, kind * self._per_kind
            yield row, column, pod.cpu_milli / _SCALE
            yield row + 1, column, pod.memory_mib / _SCALE
            yield row + 2, column, pod.whole
            for place, size in enumerate(_SIZES):
                yield row + 3 + place, column, pod.whole // size
            if pod.share:
                yield row + first_share + self._shares.index(pod.share // PERCENT), column, 1.0
            yield first_pod + number, column, 1.0
        column = len(self._flows)
        for kind in range(len(self._kinds)):
            row = kind * self._per_kind
            for pattern in self._patterns:
                yield row + 2, column, 1.0
                for number, count in enumerate(pattern):
                    yield row + first_share + number, column, -count
                column += 1
        if with_load:
            for number in self._placeable:
                yield first_pod + number, column, -self._demands[number].pods

    def _better_patterns(self, prices: Floats) -> Iterator[Pattern]:
        for kind in range(len(self._kinds) if self._shares else 0):
            of_kind = prices[kind * self._per_kind : (kind + 1) * self._per_kind]
            worth, pattern = _fill(self._shares, of_kind[3 + len(_SIZES) :])
            if worth > of_kind[2] + _BETTER:
                yield pattern

    def _alone(self, number: int) -> Pattern:
        return tuple(_PER_CARD // size if number == place else 0 for place, size in enumerate(self._shares))


def _fits(node: NodeKind, pod: TracePod) -> bool:
    enough = pod.cpu_milli <= node.cpu_milli and pod.memory_mib <= node.memory_mib and pod.gpus <= node.gpus
    return enough and (not pod.models or node.model in pod.models)


def _fill(sizes: Sequence[int], prices: Floats) -> tuple[float, Pattern]:
    """Return the highest worth of shares on one card, and these shares: the knapsack problem with copies."""
    worth = [0.0] * (_PER_CARD + 1)
    last = [-1] * (_PER_CARD + 1)
    for capacity in range(1, _PER_CARD + 1):
        worth[capacity] = worth[capacity - 1]
        for number, size in enumerate(sizes):
            if size <= capacity and worth[capacity - size] + prices[number] > worth[capacity] + 1e-12:
                worth[capacity], last[capacity] = worth[capacity - size] + float(prices[number]), number
    counts, capacity = [0] * len(sizes), _PER_CARD
    while capacity > 0:
        if last[capacity] < 0:
            capacity -= 1
        else:
            counts[last[capacity]] += 1
            capacity -= sizes[last[capacity]]
    return worth[_PER_CARD], tuple(counts)
