"""Find the nodes that fit a request, the best of them, and the devices there: the only entry to this package's verdicts.

Take the ledger, the cluster's policy and limits, and the expected pods. Return the cached verdicts of a request, the best node
for a pod's shape, and the placement there. The policy that applies to the request decides how nodes are judged: by the exact
search for all (searched.py), or by columns for simple cases (scores.py, counted.py).

Tests: tests/unit/central/rank/test_searched.py
"""

from collections.abc import Callable, Collection
from typing import Final

from central.ledger.load import Turnover
from central.ledger.model import NodeCapacity
from central.loop.steps import Steps
from central.rank.cached import CachedVerdicts, Recent
from central.rank.columns import Capacities, Columns, Followed, Loads
from central.rank.forecast import Forecast
from central.rank.fragmentation import Fragmentation
from central.rank.scores import Counting, ScoredVerdicts
from central.rank.searched import SearchedVerdicts
from central.request.model import DeviceRequest, Policy, Shape
from central.search.demand import DEFAULT_LIMITS, Limits, policy_of
from central.search.fit import fit
from central.search.placement import WITHOUT_DEVICES, NoFit, Placement
from lading.vocabulary import PodUid

REMEMBERED: Final = 256  # maximum cached requests, about 100 bytes a node each; a cluster has some dozen templates at a time


class Verdicts:
    def __init__(
        self,
        capacities: Capacities,
        loads: Loads,
        *,
        policy: Policy,
        limits: Limits = DEFAULT_LIMITS,
        forecast: Forecast | None = None,
        turnover: Callable[[], Turnover] = Turnover,
    ) -> None:
        """Create the verdicts. `policy` is the default for requests that name none."""
        self.policy = policy
        self.limits = limits
        self.forecast = forecast or Forecast()
        self._capacities = capacities
        self._turnover = turnover
        self._counting = Counting(
            Followed(Columns(), capacities, loads),
            lambda columns: Fragmentation(self.forecast.workload, columns, self.forecast.turnover.steps),
        )
        self._request: Recent[DeviceRequest, CachedVerdicts] = Recent(REMEMBERED)

    def _is_counted(self, request: DeviceRequest) -> bool:
        return policy_of(request, self.policy) is Policy.FRAGMENTATION

    def _make(self, request: DeviceRequest) -> CachedVerdicts:
        if self._is_counted(request):
            return ScoredVerdicts(request, self._counting, limits=self.limits)
        return SearchedVerdicts(request, self._capacities, policy=self.policy, limits=self.limits)

    def __contains__(self, request: DeviceRequest) -> bool:
        return request in self._request

    def of(self, request: DeviceRequest) -> CachedVerdicts:
        """Return the cached verdicts of the request, updated from the ledger; nodes that are not judged yet are left open."""
        verdicts = self._request.of(request, lambda: self._make(request))
        verdicts.catch_up()
        return verdicts

    def catching_up(self) -> Steps:
        """Read the nodes that changed in the ledger, one in each step."""
        return self._counting.followed.catching_up()

    def judging(self, request: DeviceRequest) -> Steps:
        """Judge the nodes whose verdicts for the request are open, one in each step."""
        if self._is_counted(request):
            yield from self.catching_up()
        yield from self.of(request).judging()

    def best(self, shape: Shape, among: Collection[str]) -> str | None:
        """Return the best of these nodes by the policy, among the judged ones; None if none of them fits."""
        return self.of(shape.request).best(shape.cpu_memory, among)

    def ranked(self, shape: Shape) -> list[str]:
        """Return all judged nodes that fit, in the order of the policy, the best first."""
        return self.of(shape.request).ranked(shape.cpu_memory)

    def place(self, capacity: NodeCapacity, shape: Shape) -> Placement | NoFit:
        """Return the devices that the pod gets on this node (`NodeCapacity`), or the reason for none. The pod's cpu and memory
        make no difference to whether it fits, but to which card is the best. A pod that requests no device always fits."""
        if not shape.request.containers:
            return WITHOUT_DEVICES
        if self._is_counted(shape.request):
            capacity = self._counting.with_best_card(capacity, shape, self._request.get(shape.request))
        return fit(capacity, shape.request, policy=self.policy, limits=self.limits)

    def reports_all(self, names: Collection[str]) -> bool:
        return all(map(self._counting.followed.catch_up().row_of.__contains__, names))

    def learn(self, uid: PodUid, shape: Shape) -> None:
        """Record the arrival of a pod of this shape, and the number of ended pods: the policy fragmentation expects more of the
        same."""
        arrived, turned = self.forecast.arrived(uid, shape), self.forecast.turnover.scan(self._turnover())
        if arrived or turned:
            self._counting.renew()
