"""Cache the verdicts of one request: which nodes fit, and why the others do not; each is made by the exact search.

kube-scheduler asks about every node for every pod, and between two pods of one template a handful of nodes has changed. So the
verdicts are kept for each distinct DeviceRequest, and only nodes that changed are judged again; rooms of one equivalence class
(equivalence.py) are judged once.

It takes a DeviceRequest and the rooms that changed, and returns names by verdict, and the best node. The subclasses in
searched.py and counted.py decide what else a verdict says, and which nodes need a search.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, Generic, NamedTuple, TypeVar

from central.fit.equivalence import Equivalence
from central.fit.model import Missing
from central.ledger.model import NodeRoom
from central.loop.steps import Steps
from central.request.model import CpuMemory

VERDICTS: Final = 4096  # of one request; some hundred in a cluster of few kinds of nodes

Score = tuple[int, ...]  # higher is better (score.py)
K = TypeVar("K")
V = TypeVar("V")


class Found(NamedTuple):
    """The search's result for a node on which the pod fits."""

    score: Score
    left: tuple[int, ...] = ()  # milli of the cards, in any order, where a score depends on it


Search = Callable[[NodeRoom, bool], Found | Missing]  # the last: briefly, NOT_REACHED where that does not decide


class CachedVerdicts(ABC):
    """The cached verdicts for one request. `fits` has every node with room for it, by score where it has one; `reasons` has
    every node, with the reason to show for those that do not fit, and an empty text for the others. Both are updated in
    place."""

    def __init__(self, search: Search, equivalence: Equivalence) -> None:
        self.fits: dict[str, Score] = {}
        self.reasons: dict[str, str] = {}
        self._search = search
        self._equivalence = equivalence
        self._open: dict[str, NodeRoom] = {}  # not judged as they are now
        self._hard: dict[str, NodeRoom] = {}  # the same, where a brief look did not decide
        self._by_class: dict[int, Found | Missing] = {}

    @property
    def complete(self) -> bool:
        """Return whether every node was judged in its state of the last catch-up."""
        return not self._open and not self._hard

    def judging(self) -> Steps:
        """Judge what is open, one node in each step. All get a brief look first, so that a hard node hides no easy one."""
        while self._open or self._hard:
            name, room = next(iter((self._open or self._hard).items()))
            self._judge(name, room, brief=bool(self._open))
            yield

    @abstractmethod
    def catch_up(self) -> None:
        """Read what changed; nodes that need a search are left open."""

    @abstractmethod
    def best(self, cpu_memory: CpuMemory, among: Collection[str]) -> str | None:
        """Return the best of these nodes for a pod with these requests beside its devices, the first by name if several are
        equal; None if none of them fits."""

    @abstractmethod
    def ranked(self, cpu_memory: CpuMemory) -> list[str]:
        """Return all nodes that fit, the best first."""

    def settle(self, name: str) -> None:
        """Judge this node now, if it is open."""
        room = self._open.get(name) or self._hard.get(name)
        if room is not None:
            self._judge(name, room, brief=False)

    def _leave_open(self, name: str, room: NodeRoom) -> None:
        """Forget the verdict about a node until it is judged."""
        self._hard.pop(name, None)
        self._open[name] = room
        self._say(name, Missing.NOT_REACHED)

    def _close(self, name: str) -> None:
        self._open.pop(name, None)
        self._hard.pop(name, None)

    def _drop(self, name: str) -> None:
        """Forget a node that is gone."""
        self._close(name)
        self.fits.pop(name, None)
        self.reasons.pop(name, None)

    def _say(self, name: str, missing: Missing | None, score: Score = ()) -> None:
        """Store the verdict of a node; None: it fits."""
        if missing is None:
            self.fits[name] = score
            self.reasons[name] = ""
        else:
            self.fits.pop(name, None)
            self.reasons[name] = missing.shown

    def _judge(self, name: str, room: NodeRoom, *, brief: bool) -> None:
        number = self._equivalence(room)
        verdict = self._by_class.get(number)
        if verdict is None or (verdict is Missing.NOT_REACHED and not brief):
            if len(self._by_class) >= VERDICTS:
                self._by_class.clear()
            self._by_class[number] = Missing.SEARCH_ENDED  # what counts if the search raises an exception, which it does once
            verdict = self._by_class[number] = self._search(room, brief)
        self._close(name)
        if verdict is Missing.NOT_REACHED:
            self._hard[name] = room
        else:
            self._decided(name, verdict)

    @abstractmethod
    def _decided(self, name: str, verdict: Found | Missing) -> None:
        """Store what the search found on a node."""


class Recent(Generic[K, V]):
    """The values of the last keys that were asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._known

    def get(self, key: K) -> V | None:
        """Return the value, if it is remembered."""
        return self._known.get(key)

    def of(self, key: K, make: Callable[[], V]) -> V:
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = make()
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return value
