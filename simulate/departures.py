"""Run one replay with departures: pods arrive, wait if they fit nowhere, run, and end.

Take a trace, a policy, a seed, and the process of arrivals and departures. Return a Stay: the allocated and the waiting part of
the GPUs, as means over time, and the waits of the pods of each class. Whenever a pod ends, waiting pods are tried by priority,
then in the order of their arrival. A pod that fits passes one that does not, as with kube-scheduler. Under a policy of the
product, central's own code evicts pods for those of higher priority. It also reserves nodes for pods that waited longer than
the patience (central_actions.py). An evicted pod ends at once, and returns as a new pod that runs its full duration.

The Cluster books every placement and every end. A placement beyond the free capacity ends the replay. So does the refusal of a
pod that fits, unless the capacity is reserved for another pod.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from simulate.arrivals import run_order
from simulate.baselines import Player
from simulate.central_actions import SCAN, CentralActions
from simulate.cluster import Cluster, Placed
from simulate.fragments import Fragments, typical_pods
from simulate.model import AnyPolicy, Moment, Prior, Stay
from simulate.product import Product
from simulate.replay import PROGRESS_EVERY, TurnedAwayError, make_player, without_collections
from simulate.stream import SPANS, Departures, draw_stream
from simulate.trace import Trace, TracePod

POINTS: Final = 200  # number of points of a curve
FIRST_AGAIN: Final = 1 << 40  # first number of evicted pods that return: they come after all others


class _Waiting(NamedTuple):
    number: int
    since: float
    runs: float


_InLine = tuple[int, _Waiting, int]


class _Run(NamedTuple):
    at: float  # time at which the pod ends, in units
    number: int
    kind: int
    where: Placed
    runs: float


@without_collections()
def replay_departures(
    trace: Trace,
    policy: AnyPolicy,
    seed: int,
    game: Departures,
    *,
    prior: Prior = Prior.WORKLOAD,
    tell: Callable[[int], None] = lambda arrived: None,
) -> Stay:
    """Run the replay. `tell` is called after every PROGRESS_EVERY arrivals."""
    kinds = tuple(dict.fromkeys(trace.pods))
    number_of = {pod: number for number, pod in enumerate(kinds)}
    cluster = Cluster(run_order(trace.nodes, seed), kinds, trace.partition)
    fragments = Fragments(typical_pods(trace.pods), cluster.models, cluster.free.shape[1])
    player = make_player(cluster, policy, seed, fragments, trace, prior, pods_end=True)
    running = _Running(cluster, player, _Record(cluster, game))
    if isinstance(player, Product) and (game.patience or any(kind.priority for kind in kinds)):
        running.attend(CentralActions(cluster, player, game.patience))
    for number, (at, pod, runs) in enumerate(draw_stream(trace, game, seed), 1):
        running.advance(at)
        running.arrive(number_of[pod], _Waiting(number, at, runs))
        if number % PROGRESS_EVERY == 0:
            tell(PROGRESS_EVERY)
    running.advance(SPANS[game.durations].end)
    return running.stay(policy, seed)


class _Running:
    def __init__(self, cluster: Cluster, player: Player, record: "_Record") -> None:
        self._cluster = cluster
        self._player = player
        self._record = record
        self._ends: list[_Run] = []  # heap of runs by their end; it includes evicted pods
        self._runs: dict[int, _Run] = {}  # running pods, by number
        self._waiting: dict[int, deque[_Waiting]] = defaultdict(deque)  # waiting pods, by kind
        self._again = FIRST_AGAIN  # last number given to an evicted pod that returned
        self._central: CentralActions | None = None
        self._scan_at = math.inf
        self._kept: Mapping[int, int] = {}  # reserved nodes, with the numbers of the pods

    def attend(self, central: CentralActions) -> None:
        """Let central's code handle the waiting pods."""
        self._central, self._scan_at = central, SCAN

    def advance(self, until: float) -> None:
        """Advance the time to `until`: end the pods that are due, and place waiting pods in the freed capacity."""
        while (at := min(self._ends[0].at if self._ends else math.inf, self._scan_at)) <= until:
            self._record.pass_time(at)
            if at == self._scan_at:
                self._scan_at += SCAN
                self._ask_again(at)
            elif (end := heapq.heappop(self._ends)).number in self._runs:
                self._end(end)
                if end.where.node in self._kept:
                    self._let_central_act(at)
                self._fill(end.where.node, at)
        self._record.pass_time(until)

    def arrive(self, kind: int, pod: _Waiting) -> None:
        if self._place(kind, pod, pod.since):
            return
        self._waiting[kind].append(pod)
        self._record.queued += self._cluster.kinds.all[kind].milli
        if self._central is not None:
            self._central.refused(kind, pod.number, pod.since)
            self._evict_for(kind, pod, pod.since)

    def _end(self, run: _Run) -> None:
        del self._runs[run.number]
        self._cluster.give_back(run.where.node, run.kind, run.where.cards, run.where.vfs)
        self._player.ended(run.number)
        self._player.changed(run.where.node)

    def _fill(self, node: int, now: float) -> None:
        """Place waiting pods on this node, the only node with more free capacity than when they were refused."""
        passed: set[int] = set()  # kinds for which only reserved capacity is left
        while heads := [self._in_line(kind) for kind in self._waiting if self._cluster.fits[kind, node] and kind not in passed]:
            _, pod, kind = self._with_room_kept(node, heads) or min(heads)
            if self._place(kind, pod, now):
                self._leave(kind, pod, now)
            elif node in self._kept:
                passed.add(kind)
            else:
                raise AssertionError(f"pod {pod.number} fits and was not placed")

    def _in_line(self, kind: int) -> _InLine:
        """Return the sort key of the kind's first pod, the pod, and the kind."""
        return -self._cluster.kinds.all[kind].priority, self._waiting[kind][0], kind

    def _with_room_kept(self, node: int, heads: Sequence[_InLine]) -> _InLine | None:
        """Return the pod of one of these kinds for which the node is reserved; None if there is none."""
        number = self._kept.get(node)
        kept = ((order, pod, kind) for order, _, kind in heads for pod in self._waiting[kind] if pod.number == number)
        return None if number is None else next(kept, None)

    def _leave(self, kind: int, pod: _Waiting, now: float) -> None:
        self._waiting[kind].remove(pod)
        self._record.queued -= self._cluster.kinds.all[kind].milli
        if not self._waiting[kind]:
            del self._waiting[kind]
        if pod.number in self._kept.values():
            self._let_central_act(now)

    def _place(self, kind: int, pod: _Waiting, now: float) -> bool:
        where = self._player.place(kind, pod.number)
        if where is None:
            if any(node not in self._kept for node in self._cluster.fits[kind].nonzero()[0].tolist()):
                raise TurnedAwayError(f"{self._cluster.kinds.all[kind]} is placed nowhere, and it fits on a node")
            return False
        self._cluster.take(where.node, kind, where.cards, where.vfs)
        self._player.changed(where.node)
        self._runs[pod.number] = run = _Run(now + pod.runs, pod.number, kind, where, pod.runs)
        heapq.heappush(self._ends, run)
        self._record.waited(self._cluster.kinds.all[kind], pod.since, now)
        return True

    # ---- central's actions for waiting pods

    def _ask_again(self, now: float) -> None:
        """Try all waiting pods again, as kube-scheduler does after a while."""
        for _, _, kind in sorted(map(self._in_line, self._waiting)):
            for pod in tuple(self._waiting.get(kind, ())):
                if self._central is not None and pod in self._waiting.get(kind, ()):
                    self._central.refused(kind, pod.number, now)
                    self._evict_for(kind, pod, now)
        self._let_central_act(now)

    def _is_first(self, kind: int, pod: _Waiting) -> bool:
        return kind in self._waiting and self._waiting[kind][0] is pod

    def _evict_for(self, kind: int, pod: _Waiting, now: float) -> None:
        """Evict pods for this one if it is the first of its kind, because no other pod of the kind would find victims
        either."""
        if self._central is None or not self._is_first(kind, pod):
            return
        victims = [self._runs[number] for number in self._central.evict_for(kind, pod.number)]
        for victim in victims:
            self._end(victim)
        if victims:
            self._record.evict(len(victims))
            if not self._place(kind, pod, now):
                raise AssertionError(f"{len(victims)} pods were evicted for pod {pod.number}, and it was not placed")
            self._leave(kind, pod, now)
        for victim in victims:
            self._again += 1
            self.arrive(victim.kind, _Waiting(self._again, now, victim.runs))

    def _let_central_act(self, now: float) -> None:
        """Let central reserve capacity in the current state, and place pods where a reservation ended."""
        if self._central is not None:
            before = self._kept
            self._central.scan(now)
            self._kept = self._central.kept
            for node in {**before, **self._kept}:
                self._fill(node, now)

    def stay(self, policy: AnyPolicy, seed: int) -> Stay:
        """Return the figures; pods that still wait count with their wait so far."""
        for kind, pods in self._waiting.items():
            for pod in pods:
                self._record.waited(self._cluster.kinds.all[kind], pod.since, self._record.now)
        return self._record.stay(policy, seed)


class _Record:
    def __init__(self, cluster: Cluster, game: Departures) -> None:
        self._cluster = cluster
        self._span = SPANS[game.durations]
        self.now = 0.0
        self.queued = 0  # milli requested by waiting pods
        self._allocated = self._queued = 0.0  # milli times units, after the warm-up
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._curve: list[Moment] = []
        self._evicted = 0

    def evict(self, pods: int) -> None:
        if self.now >= self._span.warm_up:
            self._evicted += pods

    def pass_time(self, until: float) -> None:
        cluster = self._cluster
        while len(self._curve) * self._span.end / POINTS <= until:
            at = len(self._curve) * self._span.end / POINTS
            self._curve.append(Moment(at=at, allocated=cluster.percent(cluster.allocated), queued=cluster.percent(self.queued)))
        counted = max(0.0, until - max(self.now, self._span.warm_up))
        self._allocated += counted * cluster.allocated
        self._queued += counted * self.queued
        self.now = until

    def waited(self, pod: TracePod, since: float, until: float) -> None:
        if since >= self._span.warm_up:
            self._waits[pod.label].append(until - since)

    def stay(self, policy: AnyPolicy, seed: int) -> Stay:
        units = self._span.end - self._span.warm_up
        return Stay(
            policy=policy,
            seed=seed,
            allocated=self._cluster.percent(self._allocated / units),
            queued=self._cluster.percent(self._queued / units),
            waits={label: tuple(waits) for label, waits in self._waits.items()},
            curve=tuple(self._curve),
            evicted=self._evicted,
        )
