"""Run one replay: the pods of one seed arrive one by one under one policy, and no pod ends.

Take a trace, a policy and a seed. Return a Run: the allocated part of the GPUs as pods arrive, and the pods that did not fit.
Every placement is booked in the Cluster, which ends the replay if the free capacity is exceeded. A policy that refuses a pod
that fits ends the replay too: no policy gets a better result by refusing difficult pods.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from central.request.model import Policy
from simulate.arrivals import draw_arrivals, run_order
from simulate.baselines import BestFit, DotProduct, Fgd, FirstFit, Player, RandomFit
from simulate.cluster import Cluster
from simulate.fragments import Fragments, typical_pods
from simulate.model import AnyPolicy, Baseline, Point, Prior, Run
from simulate.product import Product, forecast_of
from simulate.trace import Trace, TracePod

STEP: Final = 0.01  # requested part of the capacity between two points of a curve
PROGRESS_EVERY: Final = 64  # number of arrivals between two reports of progress


class TurnedAwayError(AssertionError):
    """Report a policy that refused a pod that fits on a node."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch off the garbage collector: nothing is freed in a replay, and each collection would traverse the whole cluster."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collections()
def replay(
    trace: Trace,
    policy: AnyPolicy,
    seed: int,
    *,
    ratio: float,
    prior: Prior = Prior.WORKLOAD,
    tell: Callable[[int], None] = lambda arrived: None,
) -> Run:
    """Run the replay. `tell` is called after every PROGRESS_EVERY arrivals, and for the rest at the end."""
    kinds = tuple(dict.fromkeys(trace.pods))
    number_of = {pod: number for number, pod in enumerate(kinds)}
    arriving = draw_arrivals(trace.pods, trace.capacity, ratio, seed)
    cluster = Cluster(run_order(trace.nodes, seed), kinds, trace.partition)
    fragments = Fragments(typical_pods(trace.pods), cluster.models, cluster.free.shape[1])
    record = _Record(cluster, fragments)
    player = make_player(cluster, policy, seed, fragments, trace, prior)
    began = time.perf_counter()
    for count, pod in enumerate(arriving, 1):
        kind = number_of[pod]
        where = player.place(kind, count)
        if where is not None:
            cluster.take(where.node, kind, where.cards, where.vfs)
            player.changed(where.node)
        elif cluster.fits[kind].any():
            raise TurnedAwayError(f"{policy.value} places {pod} nowhere, and it fits on a node")
        record.count(pod, placed=where is not None)
        if count % PROGRESS_EVERY == 0:
            tell(PROGRESS_EVERY)
    tell(len(arriving) % PROGRESS_EVERY)
    return record.run(policy, seed, ratio, (time.perf_counter() - began) / max(1, len(arriving)))


class _Record:
    def __init__(self, cluster: Cluster, fragments: Fragments) -> None:
        self._cluster = cluster
        self._fragments = fragments
        self._arrived: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._requested = 0
        self._curve: list[Point] = []

    def count(self, pod: TracePod, *, placed: bool) -> None:
        if not placed:
            self._failed[pod.label] += 1
        self._arrived[pod.label] += 1
        self._requested += pod.milli
        self._draw_to(self._requested / self._cluster.capacity)

    def run(self, policy: AnyPolicy, seed: int, ratio: float, decision_s: float) -> Run:
        self._draw_to(ratio)  # draws the points up to the end, which the next pod would have passed
        return Run(
            policy=policy,
            seed=seed,
            at_end=self._cluster.percent(self._cluster.allocated),
            vf_allocation=self._cluster.vf_allocation,
            arrived=dict(self._arrived),
            failed=dict(self._failed),
            curve=tuple(self._curve),
            decision_s=decision_s,
        )

    def _draw_to(self, requested: float) -> None:
        cluster = self._cluster
        while requested >= len(self._curve) * STEP:
            lost = self._fragments.of_nodes(cluster.model, cluster.cpu_milli, cluster.free)
            self._curve.append(
                Point(
                    requested=len(self._curve) * STEP * 100,
                    allocated=cluster.percent(cluster.allocated),
                    fragments=cluster.percent(float(lost.sum())),
                )
            )


def make_player(
    cluster: Cluster,
    policy: AnyPolicy,
    seed: int,
    fragments: Fragments,
    trace: Trace,
    prior: Prior,
    *,
    pods_end: bool = False,
) -> Player:
    match policy:
        case Baseline.RANDOM:
            return RandomFit(cluster, seed)
        case Baseline.FIRST_FIT:
            return FirstFit(cluster)
        case Baseline.BEST_FIT:
            return BestFit(cluster)
        case Baseline.DOT_PRODUCT:
            return DotProduct(cluster)
        case Baseline.FGD:
            return Fgd(cluster, fragments)
        case Policy():
            return Product(cluster, policy, forecast_of(trace, prior, pods_end=pods_end))
