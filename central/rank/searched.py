"""Find the nodes that fit a request, and the best by its score, with the exact search alone: for the policies binpack and
spread.

Take a DeviceRequest and columns (columns.py). Return cached verdicts (cached.py), and the best of some nodes.
"""

from collections.abc import Collection

import numpy as np

from central.ledger.model import NodeCapacity
from central.rank.cached import CachedVerdicts, ScoredNode
from central.rank.columns import Columns, Ints
from central.rank.equivalence import equivalence_for
from central.rank.ranking import NOWHERE, best, ranked
from central.rank.score import MOST_PARTS, score_placed
from central.request.model import CpuMemory, DeviceRequest, Policy
from central.search.demand import Limits, policy_of, read_demand
from central.search.fit import fit
from central.search.placement import Missing, NoFit


class SearchedVerdicts(CachedVerdicts):
    """Cache the verdicts of one request, judged by the exact search. A score does not depend on the pod's cpu and memory."""

    def __init__(self, request: DeviceRequest, columns: Columns, *, policy: Policy, limits: Limits) -> None:
        def search(capacity: NodeCapacity, brief: bool) -> ScoredNode | Missing:
            found = fit(capacity, request, policy=policy, limits=limits, brief=brief)
            if isinstance(found, NoFit):
                return found.missing
            return ScoredNode(score_placed(capacity, request, found, policy=policy, limits=limits))

        super().__init__(columns, search, equivalence_for(read_demand(request, policy_of(request, policy), limits)))
        self._scores: Ints = np.zeros((MOST_PARTS, 0), np.int64)

    def _make_room(self, rows: int) -> None:
        more = np.zeros((MOST_PARTS, rows - self._scores.shape[1]), np.int64)
        more[0] = NOWHERE
        self._scores = np.concatenate([self._scores, more], 1)

    def _look_at(self, rows: Ints) -> None:
        self._scores[0, rows] = NOWHERE
        for row in rows.tolist():
            if (capacity := self._columns.capacities[row]) is not None:
                self._leave_open(capacity.name, capacity)

    def _decided(self, row: int, verdict: ScoredNode | Missing) -> None:
        if isinstance(verdict, ScoredNode):
            self._scores[: len(verdict.score), row] = verdict.score
        self._say(self._columns.names[row], verdict if isinstance(verdict, Missing) else None)

    def best(self, cpu_memory: CpuMemory, among: Collection[str]) -> str | None:
        return best(self._columns, self._scores, among)

    def ranked(self, cpu_memory: CpuMemory) -> list[str]:
        return ranked(self._columns, self._scores)
