"""Find which nodes fit a request, which of them is the best, and with which devices: the one way to ask.

It takes the ledger, the cluster's policy and limits, and the pods to expect. It returns the cached verdicts of a request, the
best node for a pod's shape, and its placement there. Whether the exact search judges all nodes (searched.py), or columns count
those that need no search (scores.py, counted.py), is decided here, by the policy that applies to the request.
"""

from collections.abc import Callable, Collection
from typing import Final

from central.fit.cached import CachedVerdicts, Recent
from central.fit.columns import Columns, Followed, Loads, Rooms
from central.fit.demand import DEFAULT_LIMITS, Limits, policy_of
from central.fit.fit import fit
from central.fit.forecast import Forecast
from central.fit.fragmentation import Fragmentation
from central.fit.model import WITHOUT_DEVICES, NoFit, Placement
from central.fit.scores import Counting, ScoredVerdicts
from central.fit.searched import SearchedVerdicts
from central.ledger.load import Turnover
from central.ledger.model import NodeRoom
from central.loop.steps import Steps
from central.request.model import DeviceRequest, Policy, Shape
from lading.vocabulary import PodUid

REMEMBERED: Final = 256  # asks; a cluster has some dozen templates at a time, and each costs about 100 bytes a node


class Verdicts:
    def __init__(
        self,
        rooms: Rooms,
        loads: Loads,
        *,
        policy: Policy,
        limits: Limits = DEFAULT_LIMITS,
        forecast: Forecast | None = None,
        turnover: Callable[[], Turnover] = Turnover,
    ) -> None:
        """Create the verdicts. `policy`: for requests that name none."""
        self.policy = policy
        self.limits = limits
        self.forecast = forecast or Forecast()
        self._rooms = rooms
        self._turnover = turnover
        self._counting = Counting(
            Followed(Columns(), rooms, loads),
            lambda columns: Fragmentation(self.forecast.workload, columns, self.forecast.turnover.steps),
        )
        self._asks: Recent[DeviceRequest, CachedVerdicts] = Recent(REMEMBERED)

    def _is_counted(self, request: DeviceRequest) -> bool:
        return policy_of(request, self.policy) is Policy.FRAGMENTATION

    def _make(self, request: DeviceRequest) -> CachedVerdicts:
        if self._is_counted(request):
            return ScoredVerdicts(request, self._counting, limits=self.limits)
        return SearchedVerdicts(request, self._rooms, policy=self.policy, limits=self.limits)

    def __contains__(self, request: DeviceRequest) -> bool:
        """Return whether verdicts of the request are cached."""
        return request in self._asks

    def of(self, request: DeviceRequest) -> CachedVerdicts:
        """Return the cached verdicts, caught up with the ledger; nodes that are not judged yet are left open."""
        verdicts = self._asks.of(request, lambda: self._make(request))
        verdicts.catch_up()
        return verdicts

    def catching_up(self) -> Steps:
        """Read nodes that changed, one in each step."""
        return self._counting.followed.catching_up()

    def judging(self, request: DeviceRequest) -> Steps:
        """Judge the nodes that are not judged for the request as they are now, one in each step."""
        if self._is_counted(request):
            yield from self.catching_up()
        yield from self.of(request).judging()

    def best(self, shape: Shape, among: Collection[str]) -> str | None:
        """Return the best of these nodes by the policy, of those that were judged; None if none of them fits."""
        return self.of(shape.request).best(shape.cpu_memory, among)

    def ranked(self, shape: Shape) -> list[str]:
        """Return all nodes that were judged to fit, the best by the policy first."""
        return self.of(shape.request).ranked(shape.cpu_memory)

    def place(self, room: NodeRoom, shape: Shape) -> Placement | NoFit:
        """Return the devices that the pod gets in that room, or what is missing. Its requests make no difference to whether it
        fits, but to which card is the best. A pod that requests no device lacks none."""
        if not shape.request.containers:
            return WITHOUT_DEVICES
        if self._is_counted(shape.request):
            room = self._counting.with_best_card(room, shape, self._asks.get(shape.request))
        return fit(room, shape.request, policy=self.policy, limits=self.limits)

    def reports_all(self, names: Collection[str]) -> bool:
        """Return whether every one of these nodes reports devices."""
        return all(map(self._counting.followed.catch_up().row_of.__contains__, names))

    def learn(self, uid: PodUid, shape: Shape) -> None:
        """Learn that such a pod came, and how many ended: the policy fragmentation expects more of the same."""
        arrived, turned = self.forecast.arrived(uid, shape), self.forecast.turnover.look(self._turnover())
        if arrived or turned:
            self._counting.renew()
