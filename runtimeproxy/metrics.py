"""Count calls, hooks and bytes of the proxy as they happen, and read gauges when the registry is scraped.

Label values come from closed lists (CRI methods, outcomes, reasons) or from the names of registration files, so a pod cannot
create a series. A reason that a hook made up counts as "other". Only the event loop's thread may use this module.

Source: prometheus.io/docs/practices/naming.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from lading.reasons import Reason
from lading.scrape import Scraped, gauge, open_registry
from runtimeproxy.call.calls import Method
from runtimeproxy.call.outcome import Forward, Outcome

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_REASONS: Final = frozenset(Reason)
_OTHER_REASON: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    connections: int
    open_calls: int
    connections_opened: int
    connections_rejected: int
    runtime_up: bool
    hooks_up: dict[str, bool]  # whether each hook server answers, by registration
    lost_calls: int  # calls that a stop of the proxy interrupted, since the node booted
    log_dropped: int


class Metrics:
    def __init__(self) -> None:
        self.registry = open_registry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.from_client = 0  # bytes
        self.from_runtime = 0
        self._hooks: set[str] = set()  # hooks that have metric series
        self._calls = counter(
            "lading_proxy_calls",
            "Held calls that were forwarded unchanged, adjusted, refused, or cancelled by their caller.",
            ["method", "outcome"],
        )
        self._refusals = counter(
            "lading_proxy_refusals",
            "Refused calls by reason code; codes that only a hook server defines count as other.",
            ["reason"],
        )
        self._held = histogram(
            "lading_proxy_held_seconds",
            "Seconds from the arrival of the complete request until it is forwarded, refused, or cancelled by its caller.",
            ["method"],
            buckets=_BUCKETS,
        )
        self._hook = histogram(
            "lading_proxy_hook_seconds",
            "Seconds of one question to a hook server, by registration.",
            ["hook"],
            buckets=_BUCKETS,
        )
        self._hook_failures = counter(
            "lading_proxy_hook_failures",
            "Questions to a hook server without a usable answer, under any failure policy.",
            ["hook", "reason"],
        )

    def show(self, gauges: Callable[[], Gauges]) -> None:
        """Register the gauges. Call it once, when their sources exist."""
        self.registry.register(Scraped(lambda: _read(self, gauges())))

    def call_ended(self, method: Method, outcome: Outcome, held_s: float) -> None:
        if isinstance(outcome, Forward):
            self._end(method, "forwarded" if outcome.message is None else "adjusted", held_s)
        else:
            self._end(method, "refused", held_s)
            self._refusals.labels(outcome.reason if outcome.reason in _REASONS else _OTHER_REASON).inc()

    def call_cancelled(self, method: Method, held_s: float) -> None:
        self._end(method, "cancelled", held_s)

    def hook_answered(self, hook: str, seconds: float, failure: Reason | None) -> None:
        self._hooks.add(hook)
        self._hook.labels(hook).observe(seconds)
        if failure is not None:
            self._hook_failures.labels(hook, failure.value).inc()

    def forget_hooks(self, registered: Iterable[str]) -> None:
        """Remove the series of deleted registrations: operators choose the names, so over the years there may be many."""
        for hook in self._hooks - frozenset(registered):
            self._hook.remove_by_labels({"hook": hook})
            self._hook_failures.remove_by_labels({"hook": hook})
            self._hooks.discard(hook)

    def _end(self, method: Method, outcome: str, held_s: float) -> None:
        self._calls.labels(method.name, outcome).inc()
        self._held.labels(method.name).observe(held_s)


def _read(metrics: Metrics, now: Gauges) -> Iterator[Metric]:
    yield GaugeMetricFamily("lading_proxy_connections", "Client connections that are open.", now.connections)
    yield GaugeMetricFamily("lading_proxy_open_calls", "Calls that have not ended, including held calls.", now.open_calls)
    yield CounterMetricFamily("lading_proxy_connections_opened", "Client connections since the start.", now.connections_opened)
    yield CounterMetricFamily(
        "lading_proxy_connections_rejected",
        "Rejected connections: over max_connections, from a user without permission, or for lack of file descriptors.",
        now.connections_rejected,
    )
    yield GaugeMetricFamily("lading_proxy_runtime_up", "1 while the runtime answers.", int(now.runtime_up))
    yield CounterMetricFamily(
        "lading_proxy_lost_calls", "Calls that a stop of the proxy interrupted, since the node booted.", now.lost_calls
    )
    yield CounterMetricFamily("lading_log_dropped", "Log records that the journal did not accept in time.", now.log_dropped)
    bytes_ = CounterMetricFamily("lading_proxy_bytes", "Bytes received, by sender: client or runtime.", labels=["sender"])
    bytes_.add_metric(["client"], metrics.from_client)
    bytes_.add_metric(["runtime"], metrics.from_runtime)
    yield bytes_
    up = {(hook,): answers for hook, answers in now.hooks_up.items()}
    yield gauge("lading_proxy_hook_up", "1 while the registered hook server answers.", ["hook"], up)
