"""Run one replay with departures: pods arrive, wait if they fit nowhere, run, and end.

It takes a trace, a policy, a seed, and how pods come and go. It returns a Stay: how much of the GPUs was allocated and how much
was waited for, as means over time, and how long the pods of each class waited. Waiting pods are tried in the order of their
arrival whenever a pod ends; a pod that fits passes one that does not, as with kube-scheduler. There are no priorities, and no
preemption.

The Cluster books every placement and every end, and ends the replay at a placement for which there is no room, or at a pod that
fits and is refused.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simulate.arrivals import run_order
from simulate.baselines import Player
from simulate.cluster import Cluster, Placed
from simulate.fragments import Fragments, typical_pods
from simulate.model import AnyPolicy, Moment, Prior, Stay
from simulate.player import make_player
from simulate.replay import TOLD, TurnedAwayError, without_collections
from simulate.stream import SPANS, Departures, draw_stream
from simulate.trace import Trace, TracePod

POINTS: Final = 200  # of a curve


class _Waiting(NamedTuple):
    number: int
    since: float
    runs: float


class _End(NamedTuple):
    at: float
    number: int
    kind: int
    where: Placed


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
    """Run the replay. `tell` is called after every TOLD arrivals."""
    kinds = tuple(dict.fromkeys(trace.pods))
    number_of = {pod: number for number, pod in enumerate(kinds)}
    cluster = Cluster(run_order(trace.nodes, seed), kinds, trace.partition)
    fragments = Fragments(typical_pods(trace.pods), cluster.models, cluster.free.shape[1])
    player = make_player(cluster, policy, seed, fragments, trace, prior, pods_end=True)
    running = _Running(cluster, player, _Record(cluster, game))
    for number, (at, pod, runs) in enumerate(draw_stream(trace, game, seed), 1):
        running.advance(at)
        running.arrive(number_of[pod], _Waiting(number, at, runs))
        if number % TOLD == 0:
            tell(TOLD)
    running.advance(SPANS[game.durations].end)
    return running.stay(policy, seed)


@dataclass(slots=True)
class _Running:
    cluster: Cluster
    player: Player
    record: "_Record"
    ends: list[_End] = field(default_factory=list)
    waiting: dict[int, deque[_Waiting]] = field(default_factory=lambda: defaultdict(deque))  # by kind

    def advance(self, until: float) -> None:
        """End the pods that end before, and place the pods that wait for their room."""
        while self.ends and self.ends[0].at <= until:
            end = heapq.heappop(self.ends)
            self.record.pass_time(end.at)
            node = end.where.node
            self.cluster.give_back(node, end.kind, end.where.cards, end.where.vfs)
            self.player.ended(end.number)
            self.player.changed(node)
            self._fill(node, end.at)
        self.record.pass_time(until)

    def arrive(self, kind: int, pod: _Waiting) -> None:
        if not self._place(kind, pod, pod.since):
            self.waiting[kind].append(pod)
            self.record.queued += self.cluster.kinds.all[kind].milli

    def _fill(self, node: int, now: float) -> None:
        """Place pods that waited. Only this node has more room than when they were refused."""
        while heads := [(self.waiting[kind][0], kind) for kind in self.waiting if self.cluster.fits[kind, node]]:
            pod, kind = min(heads)
            if not self._place(kind, pod, now):
                raise AssertionError(f"pod {pod.number} fits and was not placed")
            self.waiting[kind].popleft()
            self.record.queued -= self.cluster.kinds.all[kind].milli
            if not self.waiting[kind]:
                del self.waiting[kind]

    def _place(self, kind: int, pod: _Waiting, now: float) -> bool:
        where = self.player.place(kind, pod.number)
        if where is None:
            if self.cluster.fits[kind].any():
                raise TurnedAwayError(f"{self.cluster.kinds.all[kind]} is placed nowhere, and it fits on a node")
            return False
        self.cluster.take(where.node, kind, where.cards, where.vfs)
        self.player.changed(where.node)
        heapq.heappush(self.ends, _End(now + pod.runs, pod.number, kind, where))
        self.record.waited(self.cluster.kinds.all[kind], pod.since, now)
        return True

    def stay(self, policy: AnyPolicy, seed: int) -> Stay:
        """Return the figures. Pods that still wait count with their wait so far."""
        for kind, pods in self.waiting.items():
            for pod in pods:
                self.record.waited(self.cluster.kinds.all[kind], pod.since, self.record.now)
        return self.record.stay(policy, seed)


class _Record:
    def __init__(self, cluster: Cluster, game: Departures) -> None:
        self._cluster = cluster
        self._span = SPANS[game.durations]
        self.now = 0.0
        self.queued = 0  # milli that waiting pods ask for
        self._allocated = self._queued = 0.0  # milli times units, after the warm-up
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._curve: list[Moment] = []

    def pass_time(self, until: float) -> None:
        while len(self._curve) * self._span.end / POINTS <= until:
            at = len(self._curve) * self._span.end / POINTS
            self._curve.append(
                Moment(at=at, allocated=self._percent(self._cluster.allocated), queued=self._percent(self.queued))
            )
        counted = max(0.0, until - max(self.now, self._span.warm_up))
        self._allocated += counted * self._cluster.allocated
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
            allocated=self._percent(self._allocated / units),
            queued=self._percent(self._queued / units),
            waits={label: tuple(waits) for label, waits in self._waits.items()},
            curve=tuple(self._curve),
        )

    def _percent(self, milli: float) -> float:
        return 100 * milli / self._cluster.capacity
