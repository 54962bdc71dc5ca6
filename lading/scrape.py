"""Make metrics whose values are read when Prometheus scrapes the daemon.

Tests: tests/unit/runtimeproxy/test_metrics.py
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lading import __version__

Labels = TypeVar("Labels", bound=tuple[str, ...])


class Scraped(Collector):
    """Collect the metrics that `read` returns at the scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # without `describe` the registry would collect once to learn the names

    def collect(self) -> Iterable[Metric]:
        return self._read()


def open_registry() -> CollectorRegistry:
    """Return a registry with the metrics that each daemon has: its version and its process."""
    registry = CollectorRegistry(auto_describe=True)
    build = gauge("lading_build_info", "Version of the running program.", ["version"], {(__version__,): 1})
    registry.register(Scraped(lambda: [build]))
    ProcessCollector(registry=registry)
    return registry


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> GaugeMetricFamily:
    """Return a gauge with one series for each key of `values`, which has a value for each label."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
