"""Cache the verdicts of one request: which nodes fit, and why the others do not; each is made by the exact search.

kube-scheduler asks about every node for every pod, and between two pods of one template a handful of nodes has changed. So
verdicts are cached for each distinct DeviceRequest, and only changed nodes are judged again. Nodes of one equivalence class
(equivalence.py) are judged once.

Take a DeviceRequest and the changed nodes (`NodeCapacity`); return node names by verdict, and the best node. The subclasses in
searched.py and counted.py add scores, and decide which nodes need a search.

Tests: tests/unit/central/rank/test_searched.py
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, Generic, NamedTuple, TypeVar

from central.ledger.model import NodeCapacity
from central.loop.steps import Steps
from central.rank.equivalence import Equivalence
from central.request.model import CpuMemory
from central.search.placement import Missing

VERDICTS: Final = 4096  # maximum cached verdicts of one request; a cluster of few kinds of nodes needs some hundred

Score = tuple[int, ...]  # higher is better (score.py)
K = TypeVar("K")
V = TypeVar("V")


class ScoredNode(NamedTuple):
    """Hold the search's result for a node on which the pod fits."""

    score: Score
    left: tuple[int, ...] = ()  # remaining milli of the cards, in any order, if a score depends on them


Search = Callable[[NodeCapacity, bool], ScoredNode | Missing]  # True requests a brief search: NOT_REACHED if undecided


class CachedVerdicts(ABC):
    """Cache the verdicts for one request. `fits` has every node that fits, with its score if there is one. `reasons` has every
    node, with the reason to show if it does not fit, and an empty text otherwise. Both are updated in place."""

    def __init__(self, search: Search, equivalence: Equivalence) -> None:
        self.fits: dict[str, Score] = {}
        self.reasons: dict[str, str] = {}
        self._search = search
        self._equivalence = equivalence
        self._open: dict[str, NodeCapacity] = {}  # changed nodes that are not judged yet
        self._hard: dict[str, NodeCapacity] = {}  # nodes about which a brief search was undecided
        self._by_class: dict[int, ScoredNode | Missing] = {}

    @property
    def complete(self) -> bool:
        """Return whether all nodes are judged in their state of the last catch-up."""
        return not self._open and not self._hard

    def judging(self) -> Steps:
        """Judge the open nodes, one in each step. All nodes get a brief search first, so that a hard node does not delay easy
        ones."""
        while self._open or self._hard:
            name, capacity = next(iter((self._open or self._hard).items()))
            self._judge(name, capacity, brief=bool(self._open))
            yield

    @abstractmethod
    def catch_up(self) -> None:
        """Read the changed nodes; nodes that need a search are left open."""

    @abstractmethod
    def best(self, cpu_memory: CpuMemory, among: Collection[str]) -> str | None:
        """Return the best of these nodes for a pod with this cpu and memory, the first by name among equals; None if none of
        them fits."""

    @abstractmethod
    def ranked(self, cpu_memory: CpuMemory) -> list[str]:
        """Return all nodes that fit, the best first."""

    def settle(self, name: str) -> None:
        """Judge this node now if its verdict is open."""
        capacity = self._open.get(name) or self._hard.get(name)
        if capacity is not None:
            self._judge(name, capacity, brief=False)

    def _leave_open(self, name: str, capacity: NodeCapacity) -> None:
        """Discard the verdict about a node until it is judged again."""
        self._hard.pop(name, None)
        self._open[name] = capacity
        self._store(name, Missing.NOT_REACHED)

    def _close(self, name: str) -> None:
        self._open.pop(name, None)
        self._hard.pop(name, None)

    def _drop(self, name: str) -> None:
        self._close(name)
        self.fits.pop(name, None)
        self.reasons.pop(name, None)

    def _store(self, name: str, missing: Missing | None, score: Score = ()) -> None:
        """Store the verdict about a node; None means that it fits."""
        if missing is None:
            self.fits[name] = score
            self.reasons[name] = ""
        else:
            self.fits.pop(name, None)
            self.reasons[name] = missing.shown

    def _judge(self, name: str, capacity: NodeCapacity, *, brief: bool) -> None:
        number = self._equivalence(capacity)
        verdict = self._by_class.get(number)
        if verdict is None or (verdict is Missing.NOT_REACHED and not brief):
            if len(self._by_class) >= VERDICTS:
                self._by_class.clear()
            self._by_class[number] = Missing.SEARCH_ENDED  # stays if the search raises an exception, so that it is not repeated
            verdict = self._by_class[number] = self._search(capacity, brief)
        self._close(name)
        if verdict is Missing.NOT_REACHED:
            self._hard[name] = capacity
        else:
            self._decided(name, verdict)

    @abstractmethod
    def _decided(self, name: str, verdict: ScoredNode | Missing) -> None:
        """Store the search's verdict about a node."""


class Recent(Generic[K, V]):
    """Cache the values of the most recently used keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def of(self, key: K, make: Callable[[], V]) -> V:
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return value
