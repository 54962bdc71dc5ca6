"""Which nodes fit an ask, and which of them is the best by its score: by the exact search alone, for the policies binpack and
spread.

Input: an Ask, rooms that changed in the ledger. Output: cached verdicts (cached.py), and the best node among some.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from central.ask.model import Ask, Policy, Shape
from central.fit.cached import REMEMBERED, CachedVerdicts, Found, Recent, Score, Search
from central.fit.demand import DEFAULT_LIMITS, Limits, policy_of, read_demand
from central.fit.equivalence import Equivalence, equivalence_for
from central.fit.fit import fit
from central.fit.model import Missing, NoFit
from central.fit.score import score_placed
from central.ledger.model import NodeRoom
from central.loop.steps import Steps

Rooms = Callable[[int], tuple[Iterable[tuple[str, NodeRoom | None]], int]]  # that changed after a version, and the version now
PASSED_OVER: Final = 64  # better nodes that kube-scheduler left out (their cpu is used up), until a look at all costs less


class SearchedVerdicts(CachedVerdicts):
    def __init__(self, search: Search, equivalence: Equivalence) -> None:
        super().__init__(search, equivalence)
        self._seen = -1  # the ledger's version that this is caught up with
        self._heap: list[tuple[Score, str]] = []  # best first, by reversed scores; an entry counts while `fits` says the same

    def catch_up(self, rooms: Rooms) -> None:
        changed, self._seen = rooms(self._seen)
        for name, room in changed:
            if room is None:
                self._drop(name)
            else:
                self._leave_open(name, room)

    def _decided(self, name: str, verdict: Found | Missing) -> None:
        if isinstance(verdict, Missing):
            self._say(name, verdict)
        else:
            self._say(name, None, verdict.score)
            heappush(self._heap, (_reversed(verdict.score), name))

    def best(self, among: Collection[str]) -> str | None:
        """Return the node with the highest score, the first by name if several have it; None if none of these fits."""
        candidates: Collection[str] = among  # mostly all, so that the first that is looked for is there
        passed_over: list[tuple[Score, str]] = []
        found = None
        while self._heap and found is None:
            if len(passed_over) > PASSED_OVER:
                found = self._best_of(among)
                break
            entry = self._heap[0]
            order, name = entry
            score = self.fits.get(name)
            if score is None or _reversed(score) != order:
                heappop(self._heap)
            elif name in candidates:
                found = name
            else:
                candidates = candidates if isinstance(candidates, frozenset) else frozenset(among)
                passed_over.append(heappop(self._heap))
        for entry in passed_over:
            heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.fits) + 16:
            self._heap = [(_reversed(score), name) for name, score in self.fits.items()]
            heapify(self._heap)
        return found

    def _best_of(self, among: Collection[str]) -> str | None:
        """Return the same by reading the score of each node."""
        fitting = (name for name in among if name in self.fits)
        return min(fitting, key=lambda name: (_reversed(self.fits[name]), name), default=None)


class Searched:
    """The verdicts of the last asks. `rooms(since)` returns the nodes that changed after that version of the ledger, with their
    current rooms, or None for a node that is gone; and the new version."""

    def __init__(self, rooms: Rooms, *, policy: Policy, limits: Limits = DEFAULT_LIMITS) -> None:
        self._rooms = rooms
        self._policy = policy
        self._limits = limits
        self._asks = Recent(REMEMBERED, self._make)

    def __contains__(self, ask: Ask) -> bool:
        """Return whether the ask is remembered."""
        return ask in self._asks

    def of(self, ask: Ask) -> SearchedVerdicts:
        """Return the verdicts, caught up with the changes; its `judging` continues from there."""
        verdicts = self._asks.of(ask)
        verdicts.catch_up(self._rooms)
        return verdicts

    def judging(self, ask: Ask) -> Steps:
        return self.of(ask).judging()

    def best(self, shape: Shape, among: Collection[str]) -> str | None:
        return self.of(shape.ask).best(among)

    def with_best_card(self, room: NodeRoom, shape: Shape) -> NodeRoom:
        """Return the room: the fit itself prefers a card."""
        return room

    def _make(self, ask: Ask) -> SearchedVerdicts:
        policy, limits = self._policy, self._limits

        def search(room: NodeRoom, brief: bool) -> Found | Missing:
            found = fit(room, ask, policy=policy, limits=limits, brief=brief)
            if isinstance(found, NoFit):
                return found.missing
            return Found(score_placed(room, ask, found, policy=policy, limits=limits))

        return SearchedVerdicts(search, equivalence_for(read_demand(ask, policy_of(ask, policy), limits)))


def _reversed(score: Score) -> Score:
    return tuple(-part for part in score)
