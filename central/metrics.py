"""What central counts as it answers, and the gauges that are read from the ledger when somebody asks.

Label values come from closed lists (verbs, states): neither a pod nor a node nor a device makes a series. On the loop's thread.

Source: prometheus.io/docs/practices/naming.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from central.fit.forecast import Forecast, Source
from central.term import Term
from lading import __version__

_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)


class Metrics:
    def __init__(self, term: Callable[[], Term | None], leads: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._took = Histogram(
            "lading_central_request_seconds",
            "Answering kube-scheduler, by verb; bind includes the API server.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._requests = Counter(
            "lading_central_requests", "Requests by verb and HTTP status.", ["verb", "status"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_State(term, leads))

    def answered(self, verb: str, status: int, seconds: float) -> None:
        self._requests.labels(verb, str(status)).inc()
        if status == 200:
            self._took.labels(verb).observe(seconds)


class _State(Collector):
    def __init__(self, term: Callable[[], Term | None], leads: Callable[[], bool]) -> None:
        self._term = term
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("lading_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily("lading_central_leader", "1 while this replica leads and answers.", value=int(self._leads()))
        term = self._term()
        if term is not None and self._leads():
            yield from _of_term(term)


def _of_term(term: Term) -> Iterator[Metric]:
    rooms = list(term.ledger.rooms())
    cards = [card for room in rooms for card in room.cards]
    vfs = [vf for room in rooms for vf in room.vfs]
    gpus = GaugeMetricFamily("lading_central_gpus", "GPUs of all nodes, by state.", labels=["state"])
    gpus.add_metric(["free"], sum(card.free for card in cards))
    gpus.add_metric(["held"], sum(card.pods > 0 for card in cards))
    gpus.add_metric(["unusable"], sum(card.pods == 0 and not card.usable for card in cards))
    yield gpus
    functions = GaugeMetricFamily("lading_central_vfs", "RDMA VFs of all nodes, by state.", labels=["state"])
    functions.add_metric(["free"], sum(vf.free for vf in vfs))
    functions.add_metric(["held"], sum(vf.usable and not vf.free for vf in vfs))
    functions.add_metric(["unusable"], sum(not vf.usable for vf in vfs))
    yield functions
    yield GaugeMetricFamily("lading_central_nodes", "Nodes that report devices.", value=len(rooms))
    pods = GaugeMetricFamily("lading_central_pods_pending", "Pods that ask for devices and are not bound.", labels=["state"])
    refused = sum(pod.refused_at is not None for pod in term.pending)
    pods.add_metric(["refused"], refused)
    pods.add_metric(["other"], len(term.pending) - refused)
    yield pods
    yield from _of_workload(term.scheduler.forecast)
    reserved = term.ledger.reservations()
    yield GaugeMetricFamily(
        "lading_central_bindings_open",
        "Bindings under way, with an unclear outcome, or not shown by the watch yet.",
        value=len(reserved),
    )


def _of_workload(forecast: Forecast) -> Iterator[Metric]:
    """What the policy fragmentation reckons with."""
    source = GaugeMetricFamily(
        "lading_central_workload_source", "1 for where the pods to expect are known from.", labels=["source"]
    )
    for one in Source:
        source.add_metric([one.value], int(one is forecast.source))
    yield source
    yield GaugeMetricFamily(
        "lading_central_workload_learned_pods", "Pods that came and were learned from.", value=forecast.learned
    )
    yield GaugeMetricFamily(
        "lading_central_workload_kinds", "Kinds of pods that are expected.", value=len(forecast.workload.kinds)
    )
