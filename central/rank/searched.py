"""Find the nodes that fit a request, and the best by its score, with the exact search alone: for the policies binpack and
spread.

Take a DeviceRequest and the changed nodes of the ledger. Return cached verdicts (cached.py), and the best of some nodes.
"""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Final

from central.ledger.model import NodeCapacity
from central.rank.cached import CachedVerdicts, Score, ScoredNode
from central.rank.columns import Capacities
from central.rank.equivalence import equivalence_for
from central.rank.score import score_placed
from central.request.model import CpuMemory, DeviceRequest, Policy
from central.search.demand import Limits, policy_of, read_demand
from central.search.fit import fit
from central.search.placement import Missing, NoFit

PASSED_OVER: Final = 64  # better nodes that kube-scheduler excluded (no cpu left), until a scan of all nodes costs less


class SearchedVerdicts(CachedVerdicts):
    """Cache the verdicts of one request, judged by the exact search. `capacities(since)` returns the nodes changed after that
    version of the ledger, with their current `NodeCapacity` or None for a deleted node, and the new version."""

    def __init__(self, request: DeviceRequest, capacities: Capacities, *, policy: Policy, limits: Limits) -> None:
        def search(capacity: NodeCapacity, brief: bool) -> ScoredNode | Missing:
            result = fit(capacity, request, policy=policy, limits=limits, brief=brief)
            if isinstance(result, NoFit):
                return result.missing
            return ScoredNode(score_placed(capacity, request, result, policy=policy, limits=limits))

        super().__init__(search, equivalence_for(read_demand(request, policy_of(request, policy), limits)))
        self._capacities = capacities
        self._observed = -1  # version of the ledger that the verdicts reflect
        self._heap: list[tuple[Score, str]] = []  # reversed score and node; stale if `fits` differs

    def catch_up(self) -> None:
        changed, self._observed = self._capacities(self._observed)
        for name, capacity in changed:
            if capacity is None:
                self._drop(name)
            else:
                self._leave_open(name, capacity)

    def _decided(self, name: str, verdict: ScoredNode | Missing) -> None:
        if isinstance(verdict, Missing):
            self._store(name, verdict)
        else:
            self._store(name, None, verdict.score)
            heappush(self._heap, (_reversed(verdict.score), name))

    def best(self, cpu_memory: CpuMemory, among: Collection[str]) -> str | None:
        """Return the node with the highest score. The score does not depend on `cpu_memory`."""
        candidates: Collection[str] = among  # mostly all nodes, so that the first entry of the heap is mostly among them
        passed_over: list[tuple[Score, str]] = []
        result = None
        while self._heap and result is None:
            if len(passed_over) > PASSED_OVER:
                result = self._best_of(among)
                break
            entry = self._heap[0]
            order, name = entry
            score = self.fits.get(name)
            if score is None or _reversed(score) != order:
                heappop(self._heap)
            elif name in candidates:
                result = name
            else:
                candidates = candidates if isinstance(candidates, frozenset) else frozenset(among)
                passed_over.append(heappop(self._heap))
        for entry in passed_over:
            heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.fits) + 16:
            self._heap = [(_reversed(score), name) for name, score in self.fits.items()]
            heapify(self._heap)
        return result

    def _best_of(self, among: Collection[str]) -> str | None:
        """Return the best of these nodes by reading the score of each one."""
        return min((name for name in among if name in self.fits), key=self._order, default=None)

    def ranked(self, cpu_memory: CpuMemory) -> list[str]:
        return sorted(self.fits, key=self._order)

    def _order(self, name: str) -> tuple[Score, str]:
        return _reversed(self.fits[name]), name


def _reversed(score: Score) -> Score:
    return tuple(-part for part in score)
