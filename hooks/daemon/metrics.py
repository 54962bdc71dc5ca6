"""Collect the metrics of the hook server: counters of its answers, and gauges that are read from the node at each scrape.

The metrics have their own registry. Label values come from closed lists (kinds, reasons), except for cards and for the holders
of devices. Holders are exported because kubelet's PodResources, where other tools find them, does not list Lading's devices.
They are one series for each held device, from the ledger at the scrape, and at most MOST_HOLDERS. Use this module on the event
loop's thread only.

Source: prometheus.io/docs/practices/naming.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from hooks.attach.preparer import Operation
from hooks.ledger.listing import Kind
from hooks.ledger.share_bypass import ShareBypass
from hooks.ledger.use import Part, find_use
from hooks.model.assignment import Form, GrantedGpu, Refusal
from hooks.model.attachment import Attachment, Step
from hooks.model.container import Answer
from hooks.model.grant import Grant, GrantKey
from hooks.model.inventory import Inventory
from hooks.node.node import Node
from hooks.ports import CardService
from hooks.report.reporter import Reporter
from lading.errors import HostError
from lading.scrape import Scraped, gauge, open_registry

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 30.0)
_MOVE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RELEASE_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
# kubelet runs 110 pods: a node near this limit has pods with hundreds of containers. A scrape then has up to 5 MB, with names
# of 253 characters.
MOST_HOLDERS: Final = 4096
_HOLDER: Final = ("device", "kind", "namespace", "pod", "container")
Labels = tuple[str, ...]
_HELD, _PENDING = "held", "pending"  # states of a grant: its container was created, or was not created yet


class Metrics:
    def __init__(self, node: Node, reporter: Reporter | None = None) -> None:
        """Register the metrics. `reporter`: None on a node that does not report to the API server."""
        self.registry = open_registry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._outcomes = counter(
            "lading_hooks_containers",
            "Containers by the hook server's answer: created, reused, refused, no-devices. "
            "Each refused one is a grant.refused in the journal.",
            ["outcome", "reason"],
        )
        self._decision = histogram(
            "lading_hooks_decision_seconds",
            "Seconds to decide about a container and record it.",
            buckets=_BUCKETS,
        )
        self._moves = histogram(
            "lading_hooks_vf_move_seconds",
            "Seconds to move a container's VFs into its pod (attach), or a sandbox's VFs back before it is stopped (release).",
            ["operation"],
            buckets=_MOVE_BUCKETS,
        )
        self._failed_moves = counter(
            "lading_hooks_vf_move_failures",
            "Moves of VFs that failed or were not done in time.",
            ["operation"],
        )
        self._release = histogram(
            "lading_hooks_release_seconds",
            "Seconds from the stop of a pod's sandbox until the devices of its containers are free.",
            buckets=_RELEASE_BUCKETS,
        )
        self._asked = histogram(
            "lading_hooks_nri_call_seconds",
            "Seconds of a call of the runtime by NRI, until it was answered. The runtime makes one at a time.",
            ["method"],
            buckets=_BUCKETS,
        )
        self._bypassed_stopped = counter(
            "lading_hooks_bypassed_stopped",
            "Containers that were stopped because they ran without their pod's devices (front_end nri).",
        )
        for operation in Operation:
            self._moves.labels(operation)
            self._failed_moves.labels(operation)
        self.registry.register(Scraped(lambda: _read(node)))
        if reporter is not None:
            self.registry.register(Scraped(lambda: _read_reports(reporter)))

    def answered(self, answer: Answer | Refusal, seconds: float) -> None:
        self._decision.observe(seconds)
        match answer:
            case Refusal(reason=reason):
                self._outcomes.labels("refused", reason.value).inc()
            case Answer(grant=None):
                self._outcomes.labels("no-devices", "").inc()
            case Answer(reused=reused):
                self._outcomes.labels("reused" if reused else "created", "").inc()

    def moved(self, operation: Operation, seconds: float, succeeded: bool) -> None:
        self._moves.labels(operation).observe(seconds)
        if not succeeded:
            self._failed_moves.labels(operation).inc()

    def asked(self, method: str, seconds: float) -> None:
        self._asked.labels(method).observe(seconds)

    def bypassed_stopped(self) -> None:
        self._bypassed_stopped.inc()

    def released(self, seconds: float) -> None:
        self._release.observe(seconds)


def _read(node: Node) -> Iterator[Metric]:
    inventory = node.inventory or Inventory()
    grants = node.ledger.grants()
    yield _grants(grants)
    yield _devices(inventory)
    yield from _use(inventory)
    dirty = {(card,): 1 for card in node.hand_over.since}
    yield gauge("lading_gpu_dirty", "1 for each card without a holder that is not clean.", ["uuid"], dirty)
    yield from _holders(grants)
    yield _used_by_holders(node.host_root, inventory, grants)
    yield _share_bypasses(node.share_bypasses)
    yield from _services([service for preparer in node.preparers for service in preparer.services()])
    rows = node.ledger.journal.rows()
    yield _attachments(rows)
    yield GaugeMetricFamily("lading_hooks_vfs_stuck", "Attached VFs at a step that failed.", sum(bool(r.failure) for r in rows))
    yield GaugeMetricFamily(
        "lading_bypassed_containers",
        "Containers that run without the devices of their pod's annotations.",
        len(node.bypassed),
    )
    age_s = node.watch.age_s if node.watch else float("inf")
    yield GaugeMetricFamily(
        "lading_hooks_inventory_age_seconds", "Seconds since the devices were last read without an error.", age_s
    )
    yield GaugeMetricFamily(
        "lading_hooks_reconcile_age_seconds",
        "Seconds since the ledger was last compared with the runtime's lists; +Inf before the first time.",
        node.reconcile_age_s,
    )
    yield CounterMetricFamily(
        "lading_hooks_reconcile_failures",
        "Comparisons of the ledger with the runtime that failed.",
        node.reconcile_failures,
    )
    yield CounterMetricFamily("lading_hooks_ledger_write_failures", "Failed writes of the ledger.", node.ledger.write_failures)
    yield CounterMetricFamily("lading_log_dropped", "Log records that the journal did not accept in time.", node.log.dropped)


def _read_reports(reporter: Reporter) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "lading_hooks_report_age_seconds",
        "Seconds since the API server last accepted a report, which a quiet node sends every ten minutes; "
        "+Inf before the first.",
        reporter.age_s,
    )
    yield GaugeMetricFamily(
        "lading_hooks_report_stale_seconds",
        "Seconds for which the API server may lack a change of this node; 0: none.",
        reporter.stale_s,
    )
    yield CounterMetricFamily("lading_hooks_report_failures", "Reports to the API server that failed.", reporter.failures)


def _grants(grants: Iterable[Grant]) -> Metric:
    tally = Tally((str(grant.form), _HELD if grant.containers else _PENDING) for grant in grants)
    forms = sorted({*map(str, Form), *(form for form, _ in tally)})
    return gauge(
        "lading_hooks_grants",
        "Grants of the ledger: held by a container, as of the last comparison with the runtime, or pending.",
        ["form", "state"],
        {(form, state): tally[form, state] for form in forms for state in (_HELD, _PENDING)},
    )


def _holders(grants: Iterable[Grant]) -> Iterator[Metric]:
    """Yield the series of holders. If a pod was created again under its name, and both pods hold a share of a card, the value
    is the sum."""
    held = list(islice(_held(grants), MOST_HOLDERS))
    mib: Tally[Labels] = Tally()
    percent: Tally[Labels] = Tally()
    for labels, _, gpu in held:
        if gpu is not None and gpu.memory_mib is not None:
            mib[labels] += gpu.memory_mib
        if gpu is not None and gpu.core_percent is not None:
            percent[labels] += gpu.core_percent
    ones = {labels: 1 for labels, *_ in held}
    yield gauge("lading_device_holder", "1 for each device that a container holds; kind is gpu, mig or vf.", _HOLDER, ones)
    yield gauge("lading_device_held_mib", "Memory of a share by memory, in MiB.", _HOLDER, mib)
    yield gauge("lading_device_held_percent", "Compute of a share by compute, in percent.", _HOLDER, percent)


def _held(grants: Iterable[Grant]) -> Iterator[tuple[Labels, GrantKey, GrantedGpu | None]]:
    """Yield the labels of each held device, the key of its grant, and its granted GPU; None instead of a GPU for a VF."""
    for grant in grants:
        who = (grant.namespace, grant.pod_name, grant.container)
        for gpu in grant.devices.gpus:
            device = (gpu.mig_uuid, Kind.MIG) if gpu.mig_uuid else (gpu.uuid, Kind.GPU)
            yield (*device, *who), grant.key, gpu
        for vf in grant.devices.vfs:
            yield (vf.bdf, Kind.VF, *who), grant.key, None


def _used_by_holders(host_root: Path, inventory: Inventory, grants: Sequence[Grant]) -> Metric:
    """Return the GPU memory in use, by container and device, as far as the driver and /proc report it."""
    try:
        uses = find_use(host_root, inventory, grants)
    except HostError:
        uses = {}
    mib: Tally[Labels] = Tally()
    for labels, key, _ in islice(_held(grants), MOST_HOLDERS):
        used = uses.get(Part(labels[0], key))
        if used is not None:
            mib[labels] += used
    return gauge(
        "lading_device_used_mib",
        "Memory that a container's processes use of a card or instance that it holds. "
        "Absent where NVML does not report it, or lading-hooks has a pid namespace of its own.",
        _HOLDER,
        mib,
    )


def _share_bypasses(bypasses: Iterable[ShareBypass]) -> Metric:
    who = {(one.card, Kind.GPU, one.namespace, one.pod_name, one.container, one.how) for one in islice(bypasses, MOST_HOLDERS)}
    return gauge(
        "lading_share_bypassed",
        "1 for each container that does not keep to its share of a card; why is process or memory.",
        (*_HOLDER, "why"),
        dict.fromkeys(sorted(who), 1),
    )


def _services(services: Sequence[CardService]) -> Iterator[Metric]:
    labels = ["service", "uuid"]
    yield gauge(
        "lading_gpu_service_up",
        "1 if the card's daemon runs, for each card that needs one or still has one; service is mps.",
        labels,
        {(one.name, one.card): one.runs for one in services},
    )
    yield gauge(
        "lading_gpu_service_clients",
        "Processes that use the card through the daemon, at the last comparison; a server of MPS has 48 at most.",
        labels,
        {(one.name, one.card): one.clients for one in services},
    )
    yield gauge(
        "lading_gpu_service_fault",
        "1 while a fault of one client blocks the card's daemon: all clients end, and it accepts no other.",
        labels,
        {(one.name, one.card): one.fault for one in services},
    )
    failures = CounterMetricFamily(
        "lading_gpu_service_failures",
        "Failures to start, query or stop the card's daemon, and its unexpected ends.",
        labels=labels,
    )
    for one in services:
        failures.add_metric([one.name, one.card], one.failures)
    yield failures


def _use(inventory: Inventory) -> Iterator[Metric]:
    yield gauge(
        "lading_gpu_used_mib",
        "Memory in use at the last reading of NVML, without the driver's own part; absent if the card does not report it.",
        ["uuid"],
        {(gpu.uuid,): gpu.used_mib for gpu in inventory.gpus if gpu.used_mib is not None},
    )
    yield gauge(
        "lading_gpu_busy_percent",
        "Busy in the driver's last sample period; absent in MIG mode, and if the card does not report it.",
        ["uuid"],
        {(gpu.uuid,): gpu.busy_percent for gpu in inventory.gpus if gpu.busy_percent is not None},
    )


def _attachments(rows: Iterable[Attachment]) -> Metric:
    tally = Tally(row.step for row in rows)
    return gauge(
        "lading_hooks_vfs_attached",
        "VFs in pods' network namespaces, or on the way there or back, by step.",
        ["step"],
        {(step,): tally[step] for step in Step},
    )


def _devices(inventory: Inventory) -> Metric:
    result = [("gpu", gpu.unhealthy) for gpu in inventory.gpus] + [("vf", vf.unhealthy) for vf in inventory.vfs]
    tally = Tally((kind, "unhealthy" if reason else "healthy") for kind, reason in result)
    counts = {(kind, health): tally[kind, health] for kind in ("gpu", "vf") for health in ("healthy", "unhealthy")}
    return gauge("lading_hooks_devices", "GPUs and VFs that were found.", ["kind", "health"], counts)
