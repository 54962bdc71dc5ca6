"""Test whole replays with departures: equal for equal seeds, honest for every policy, and with the waits of a queue by hand."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from central.request.model import Policy
from simulate import departures
from simulate.baselines import Player
from simulate.cluster import Cluster, OverCapacityError, Placed
from simulate.departures import replay_departures
from simulate.model import AnyPolicy, Baseline, Prior, Stay
from simulate.replay import TurnedAwayError, make_player
from simulate.stream import SPANS, Departures, Durations, draw_stream
from simulate.trace import Trace, TraceNode
from tests.unit.simulate.small import PODS, TRACE, Stubborn, share, whole

POLICIES: list[AnyPolicy] = [*Policy, *Baseline]
TIMED = replace(TRACE, lifetimes=tuple(100.0 * (number + 1) for number in range(len(PODS))))
EXPONENTIAL = Departures(durations=Durations.EXPONENTIAL, load=0.9)
NODE = TraceNode(name="n", cpu_milli=64_000, memory_mib=262_144, gpus=2, model="T4")


@dataclass
class Spy:
    """Record what a policy placed, and which pods ended."""

    cluster: Cluster
    player: Player
    placed: dict[int, tuple[int, Placed]] = field(default_factory=dict)  # kind and place of each pod
    ended_pods: list[int] = field(default_factory=list)

    def place(self, kind: int, pod: int) -> Placed | None:
        where = self.player.place(kind, pod)
        if where is not None:
            assert pod not in self.placed
            self.placed[pod] = kind, where
        return where

    def ended(self, pod: int) -> None:
        self.ended_pods.append(pod)
        self.player.ended(pod)

    def changed(self, node: int) -> None:
        self.player.changed(node)


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    made: list[Spy] = []

    def spied(cluster: Cluster, *rest: Any, **options: Any) -> Spy:
        made.append(Spy(cluster, make_player(cluster, *rest, **options)))
        return made[-1]

    monkeypatch.setattr(departures, "make_player", spied)
    return made


def played(policy: AnyPolicy, seed: int = 42, game: Departures = EXPONENTIAL, prior: Prior = Prior.WORKLOAD) -> Stay:
    return replay_departures(TIMED, policy, seed, game, prior=prior)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("durations", Durations)
@pytest.mark.long
def test_a_seed_says_it_all(policy: AnyPolicy, durations: Durations) -> None:
    game = Departures(durations=durations, load=0.9)
    assert played(policy, game=game) == played(policy, game=game)
    assert played(policy, game=game).curve != played(policy, 43, game).curve


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prior", Prior)
def test_allocated_amounts_are_those_of_running_pods(spies: list[Spy], policy: AnyPolicy, prior: Prior) -> None:
    stay = played(policy, prior=prior, game=Departures(durations=Durations.EXPONENTIAL, load=1.2))
    (spy,) = spies
    kinds, cluster = spy.cluster.kinds.all, spy.cluster
    runs = {pod: kinds[kind] for pod, (kind, _) in spy.placed.items() if pod not in spy.ended_pods}
    assert len(set(spy.ended_pods)) == len(spy.ended_pods) > 50
    assert cluster.allocated == sum(pod.milli for pod in runs.values()) > 0
    assert int(cluster.free.clip(min=0).sum()) == cluster.capacity - cluster.allocated
    assert int(cluster.cpu_milli.sum()) == sum(n.cpu_milli for n in TRACE.nodes) - sum(pod.cpu_milli for pod in runs.values())
    assert stay.curve[-1].allocated == pytest.approx(100 * cluster.allocated / cluster.capacity)
    assert all(0 <= moment.allocated <= 100 and moment.queued >= 0 for moment in stay.curve)


def test_pods_end_when_none_has_to_wait() -> None:
    """Check a small load, at which each pod runs from its arrival on, so that the stream alone determines the allocation."""
    game = Departures(durations=Durations.EXPONENTIAL, load=0.05)
    stay, stream = played(Baseline.FGD, game=game), list(draw_stream(TIMED, game, 42))
    assert not any(wait for waits in stay.waits.values() for wait in waits)
    assert stay.queued == 0
    for moment in stay.curve:
        runs = sum(pod.milli for at, pod, runs in stream if at <= moment.at < at + runs)
        assert moment.allocated == pytest.approx(100 * runs / TIMED.capacity)


@pytest.mark.parametrize("policy", [Policy.FRAGMENTATION, Baseline.FIRST_FIT])
@pytest.mark.parametrize("load", [0.7, 1.5])
def test_waits_of_a_queue_by_hand(policy: AnyPolicy, load: float) -> None:
    """Use one card, and pods that take all of it: each starts once it has arrived and the previous one has ended."""
    trace = Trace(nodes=(replace(NODE, gpus=1),), pods=(whole(1),))
    game = Departures(durations=Durations.EXPONENTIAL, load=load)
    stay, span, free_at = replay_departures(trace, policy, 42, game), SPANS[Durations.EXPONENTIAL], 0.0
    waits, used, waited = [], 0.0, 0.0
    for at, _, runs in draw_stream(trace, game, 42):
        starts = max(at, free_at)
        free_at = starts + runs
        used += overlap(starts, free_at)
        waited += overlap(at, starts)
        if at >= span.warm_up:
            waits.append(min(starts, span.end) - at)
    assert sorted(stay.waits["1 GPU"]) == pytest.approx(sorted(waits))
    assert max(waits) > 0
    assert (stay.allocated, stay.queued) == pytest.approx((100 * used / 9, 100 * waited / 9))


def overlap(since: float, until: float) -> float:
    """Return how much of this time the figures are of."""
    span = SPANS[Durations.EXPONENTIAL]
    return max(0.0, min(until, span.end) - max(since, span.warm_up))


@pytest.mark.parametrize("policy", [Policy.FRAGMENTATION, Policy.SPREAD, Baseline.FGD, Baseline.RANDOM])
def test_pods_that_fit_pass_others_but_none_of_their_kind(spies: list[Spy], policy: AnyPolicy) -> None:
    trace = Trace(nodes=(NODE,), pods=(whole(2), whole(1), share(300)))
    replay_departures(trace, policy, 42, Departures(durations=Durations.EXPONENTIAL, load=1.3))
    order = [(kind, pod) for pod, (kind, _) in spies[0].placed.items()]
    for kind in range(3):
        of_kind = [pod for its, pod in order if its == kind]
        assert of_kind == sorted(of_kind)
        assert len(of_kind) > 1
    assert [pod for _, pod in order] != sorted(pod for _, pod in order)


def test_pods_that_wait_are_tried_in_the_order_of_arrival(spies: list[Spy]) -> None:
    trace = Trace(nodes=(replace(NODE, gpus=1),), pods=(whole(1, 1_000), whole(1, 2_000)))
    replay_departures(trace, Baseline.FIRST_FIT, 42, Departures(durations=Durations.EXPONENTIAL, load=1.3))
    (spy,) = spies
    assert list(spy.placed) == sorted(spy.placed)
    assert {kind for kind, _ in spy.placed.values()} == {0, 1}


def test_pods_that_fit_nowhere_wait_until_the_end() -> None:
    trace = Trace(nodes=(NODE,), pods=(whole(3), whole(1)))
    game = Departures(durations=Durations.EXPONENTIAL, load=0.5)
    span, stay = SPANS[Durations.EXPONENTIAL], replay_departures(trace, Baseline.FGD, 42, game)
    large = [at for at, pod, _ in draw_stream(trace, game, 42) if pod.gpus == 3]
    assert sorted(stay.waits["3 GPUs"]) == pytest.approx(sorted(span.end - at for at in large if at >= span.warm_up))
    assert stay.curve[-1].queued == pytest.approx(100 * 3 * len(large) / 2)
    assert max(stay.waits["1 GPU"]) < span.end - span.warm_up


@pytest.mark.parametrize(("answer", "error"), [(None, TurnedAwayError), (Placed(0, [0]), OverCapacityError)])
def test_a_policy_that_cheats_ends_the_replay(
    monkeypatch: pytest.MonkeyPatch, answer: Placed | None, error: type[Exception]
) -> None:
    def stubborn(*rest: object, **options: object) -> Stubborn:
        return Stubborn(answer)

    monkeypatch.setattr(departures, "make_player", stubborn)
    with pytest.raises(error):
        played(Baseline.FGD)


def test_progress_is_reported() -> None:
    counted: list[int] = []
    replay_departures(TIMED, Baseline.FGD, 42, EXPONENTIAL, tell=counted.append)
    arrived = len(list(draw_stream(TIMED, EXPONENTIAL, 42)))
    assert arrived - 64 < sum(counted) <= arrived
