"""Count requests and answers, and compute the gauges at each scrape.

The inputs are requests and their answers, the process' counts (counts.py), and the current leadership. The metrics have a
registry of their own. A scrape reads only existing numbers and the pending pods: nodes are counted in the background
(statistics.py). No pod, node or device makes a series: label values are verbs, reasons and states. Everything runs on the event
loop's thread.

Source: prometheus.io/docs/practices/naming.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from central.controllers.event_reasons import EventReason
from central.controllers.gpu_hours import GpuHours
from central.controllers.statistics import Amounts, Overview
from central.daemon.leadership import Leadership
from central.gang.life import Phase
from central.loop.faults import Faults, Work
from central.quota.amounts import CARD
from central.rank.forecast import Forecast, Source
from central.request.reasons import OfPod
from central.search.placement import Missing
from central.state.counts import BindOutcome, Counts, EvictOutcome
from central.state.pending import PendingPods
from central.state.quotas import Quotas
from lading import __version__
from lading.vocabulary import RESOURCE_GPU

_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)
_REASONS: Final = (*Missing, *OfPod)
MOST_QUOTAS: Final = 200  # maximum quotas with their own series, the first by name; kubectl lading quota shows all
_UNKNOWN: Final = "unknown"  # reason of a pod that an earlier leader refused, without a request since


class Metrics(Collector):
    def __init__(
        self,
        counts: Counts,
        *,
        leadership: Callable[[], Leadership | None],
        leads: Callable[[], bool],
        transitions: Callable[[], int],
    ) -> None:
        """Create the registry. `transitions` returns the number of leader changes in the last observed lease."""
        self.registry = CollectorRegistry(auto_describe=True)
        self._took = Histogram(
            "lading_central_request_seconds",
            "Seconds to answer kube-scheduler, by verb; bind includes the API server.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._requests = Counter(
            "lading_central_requests",
            "Requests by verb and HTTP status; 503: another replica leads.",
            ["verb", "status"],
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self._counts = counts
        self._transitions = transitions
        self._leadership = leadership
        self._leads = leads
        self.registry.register(self)

    def answered(self, verb: str, status: int, seconds: float) -> None:
        self._requests.labels(verb, str(status)).inc()
        if status == 200:
            self._took.labels(verb).observe(seconds)

    def describe(self) -> Iterable[Metric]:
        return ()  # without `describe` the registry would call `collect` to learn the names

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("lading_build_info", "Version of the running program.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily(
            "lading_central_leader",
            "1 while this replica leads and answers; the sum over replicas should be 1.",
            value=int(self._leads()),
        )
        yield CounterMetricFamily(
            "lading_central_lease_transitions", "Changes of leader, as the lease counts them.", self._transitions()
        )
        yield from _of_counts(self._counts)
        leadership = self._leadership()
        if leadership is None:
            return
        yield from _of_watches(leadership)
        yield from _of_faults(leadership.faults)
        if self._leads():
            yield from _of_pods(leadership.pending)
            yield from _of_gangs(leadership.gang_phases)
            yield from _of_bindings(leadership)
            yield from _of_workload(leadership.scheduler.forecast)
            if overview := leadership.statistics.overview:
                yield from _of_cluster(overview)
                yield from _of_fragmentation(overview)
            yield from _of_namespaces(leadership.gpu_hours)
            yield from _of_quotas(leadership.quotas)


def _of_counts(counts: Counts) -> Iterator[Metric]:
    """Yield the metrics of the process, which do not depend on the current leader."""
    refusals = CounterMetricFamily(
        "lading_central_refusals",
        "Answers that named no node, by the reason of most nodes. A pod counts each time kube-scheduler asks.",
        labels=["reason"],
    )
    for reason in _REASONS:
        refusals.add_metric([reason], counts.refused[reason])
    yield refusals
    bindings = CounterMetricFamily(
        "lading_central_bindings",
        "Bindings by outcome: bound, refused, unclear. An unclear one counts later as found-bound or found-not-bound.",
        labels=["outcome"],
    )
    for outcome in BindOutcome:
        bindings.add_metric([outcome], counts.bound[outcome])
    yield bindings
    evictions = CounterMetricFamily(
        "lading_central_evictions",
        "Evictions by the reason of the Event, and outcome: evicted, spared (a disruption budget), unclear (asked again).",
        labels=["reason", "outcome"],
    )
    for cause in (EventReason.PREEMPTED, EventReason.DEVICE_CONFLICT, EventReason.SHARE_BYPASSED, EventReason.QUOTA_TAKEN_BACK):
        for evicted in EvictOutcome:
            evictions.add_metric([cause, evicted], counts.evicted[cause, evicted])
    yield evictions
    yield CounterMetricFamily("lading_central_preemptions", "Pods for which preemption was started.", counts.nominated)
    exceptions = CounterMetricFamily(
        "lading_central_exceptions",
        "Errors in central's code about one object each (handling.failed in the log), by the work: watch, gangs, extender, …",
        labels=["work"],
    )
    for work in Work:
        exceptions.add_metric([work], counts.exceptions[work])
    yield exceptions
    yield CounterMetricFamily("lading_central_wakes", "Refused pods that were requeued.", counts.requeued)


def _of_watches(leadership: Leadership) -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "lading_central_watch_silent_seconds",
        "Seconds since the API server last sent anything about the resource.",
        labels=["resource"],
    )
    failures = CounterMetricFamily("lading_central_watch_failures", "Lists and watches that failed.", labels=["resource"])
    for watch in leadership.watches:
        silent.add_metric([watch.resource], watch.silent_s)
        failures.add_metric([watch.resource], watch.failures)
    yield silent
    yield failures


def _of_faults(faults: Faults) -> Iterator[Metric]:
    aside = GaugeMetricFamily(
        "lading_central_objects_set_aside",
        "Objects that are not handled now after an error: for 1 s, then for twice as long each time, for 60 s at most.",
        labels=["work"],
    )
    counted = faults.set_aside()
    for work in Work:
        aside.add_metric([work], counted[work])
    yield aside


def _of_pods(pending: PendingPods) -> Iterator[Metric]:
    tally = Tally(pod.refused_for or _UNKNOWN for pod in pending if pod.refused_at is not None)
    refused = tally.total()
    pods = GaugeMetricFamily(
        "lading_central_pods_pending",
        "Pods that ask for devices and are not bound: refused (fitted on no node when last asked), other.",
        labels=["state"],
    )
    pods.add_metric(["refused"], refused)
    pods.add_metric(["other"], len(pending) - refused)
    yield pods
    waiting = GaugeMetricFamily(
        "lading_central_pods_waiting",
        "Refused pods, by the reason of most nodes; unknown: not asked about since this leader began.",
        labels=["reason"],
    )
    for reason in (*_REASONS, _UNKNOWN):
        waiting.add_metric([reason], tally[reason])
    yield waiting


def _of_gangs(phases: Mapping[Phase, int]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "lading_central_gangs", "Gangs by phase: gathering, queued, planned, binding, placed.", labels=["phase"]
    )
    for phase in Phase:
        family.add_metric([phase], phases.get(phase, 0))
    yield family


def _of_bindings(leadership: Leadership) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "lading_central_bindings_open",
        "Bindings that are sent, unclear, or not shown by the watch yet.",
        value=len(leadership.ledger.reservations()),
    )
    yield GaugeMetricFamily(
        "lading_central_bindings_unclear",
        "Bindings with an unknown outcome: their devices stay reserved.",
        value=leadership.unclear_bindings,
    )


def _of_cluster(overview: Overview) -> Iterator[Metric]:
    nodes = GaugeMetricFamily(
        "lading_central_nodes", "Nodes that report devices: ready, unreachable, rebooted, not-reconciled.", labels=["state"]
    )
    for state, count in overview.nodes.items():
        nodes.add_metric([state], count)
    yield nodes
    gpus = _by_state(
        "lading_central_gpus",
        "GPUs: free, held (whole or in part), unusable (unhealthy, dirty, cordoned, or on a node that is not ready), "
        "mig (in MIG mode, without a held instance).",
        overview.gpus,
    )
    gpus.add_metric(["mig"], overview.mig_gpus)
    yield gpus
    yield _by_state(
        "lading_central_gpu_memory_mib", "Memory of GPUs that are not in MIG mode: free, held, unusable.", overview.memory_mib
    )
    yield _by_state(
        "lading_central_gpu_core_percent",
        "Compute of GPUs that are not in MIG mode, 100 a GPU: free, held, unusable.",
        overview.core_percent,
    )
    yield _by_state("lading_central_vfs", "RDMA VFs of all nodes: free, held, unusable.", overview.vfs)


def _by_state(name: str, help_text: str, amounts: Amounts) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=["state"])
    for state, amount in zip(Amounts._fields, amounts, strict=True):
        family.add_metric([state], amount)
    return family


def _of_fragmentation(overview: Overview) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "lading_central_fragmentation_ratio",
        "Part of the free capacity that expected pods cannot use, from 0 to 1.",
        overview.fragmentation,
    )
    yield GaugeMetricFamily(
        "lading_central_fragmentation_free_gpus",
        "Free capacity, in GPUs; a part of a card counts as a part.",
        overview.free_milli / 1000,
    )
    yield GaugeMetricFamily(
        "lading_central_fragmentation_unusable_gpus",
        "Free capacity that expected pods cannot use, in GPUs.",
        overview.unusable_milli / 1000,
    )
    places = GaugeMetricFamily(
        "lading_central_fragmentation_places",
        "How many pods of 1, 2, 4 or 8 whole GPUs would fit, each kind alone.",
        labels=["gpus"],
    )
    for gpus, count in overview.places.items():
        places.add_metric([str(gpus)], count)
    yield places


def _of_namespaces(hours: GpuHours) -> Iterator[Metric]:
    label = ["namespace"]
    for family, seconds in (
        (
            CounterMetricFamily(
                "lading_central_gpu_asked_seconds", "Seconds of GPUs for which pods waited or held them.", labels=label
            ),
            hours.requested,
        ),
        (
            CounterMetricFamily("lading_central_gpu_held_seconds", "Seconds of GPUs for which pods held them.", labels=label),
            hours.held,
        ),
        (
            CounterMetricFamily("lading_central_gpu_used_seconds", "Seconds for which held GPUs worked.", labels=label),
            hours.used,
        ),
    ):
        for namespace in sorted(seconds):
            family.add_metric([namespace], seconds[namespace])
        yield family


def _of_quotas(quotas: Quotas) -> Iterator[Metric]:
    """Yield nothing in a cluster without quotas."""
    snapshot = quotas.snapshot()
    if snapshot is None:
        return
    states = GaugeMetricFamily(
        "lading_central_quotas",
        "Quotas: counted, and refused because they contradict themselves or others; only in clusters with quotas.",
        labels=["state"],
    )
    states.add_metric(["counted"], len(snapshot.tree.quotas))
    states.add_metric(["refused"], len(snapshot.tree.problems))
    yield states
    gpus = GaugeMetricFamily(
        "lading_central_quota_gpus",
        "GPUs of a quota that limits them, the first 200 by name: min, max, runtime, used, waiting.",
        labels=["quota", "amount"],
    )
    limited = sorted(name for name, quota in snapshot.tree.quotas.items() if RESOURCE_GPU in quota.max)
    for name in limited[:MOST_QUOTAS]:
        quota, used = snapshot.tree.quotas[name], snapshot.used_of(name, RESOURCE_GPU)
        for amount, milli in (
            ("min", quota.min.get(RESOURCE_GPU, 0)),
            ("max", quota.max[RESOURCE_GPU]),
            ("runtime", snapshot.runtime_of(quota, RESOURCE_GPU) or 0),
            ("used", used),
            ("waiting", max(0, snapshot.requested_of(name, RESOURCE_GPU) - used)),
        ):
            gpus.add_metric([name, amount], milli / CARD)
    yield gpus


def _of_workload(forecast: Forecast) -> Iterator[Metric]:
    """Yield the metrics of the workload that the policy fragmentation expects."""
    source = GaugeMetricFamily(
        "lading_central_workload_source",
        "1 for the source of the pods that the policy fragmentation expects: prior (a file), online (learned), both.",
        labels=["source"],
    )
    for one in Source:
        source.add_metric([one.value], int(one is forecast.source))
    yield source
    yield GaugeMetricFamily("lading_central_workload_learned_pods", "Pods from which central learned.", value=forecast.learned)
    yield GaugeMetricFamily(
        "lading_central_workload_turnover",
        "Estimated part of the pods placed now that makes up for pods that end, from 0 to 1.",
        value=forecast.turnover.share,
    )
    yield GaugeMetricFamily("lading_central_workload_kinds", "Kinds of expected pods.", value=len(forecast.workload.kinds))
