"""Read the metrics of a daemon as Prometheus does."""

from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Metrics(Protocol):
    @property
    def registry(self) -> CollectorRegistry: ...


def samples(metrics: Metrics) -> dict[str, float]:
    """Return the samples as `name{label=value}` → value, without those of the process."""
    out = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            out[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {name: value for name, value in out.items() if not name.startswith("process_")}
