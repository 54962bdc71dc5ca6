"""Read what a daemon says of itself over HTTP. Its address is in its log, because it listens on any free port."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from lading.log import Event


def port_of(log: Path) -> int:
    """Return the metrics port of the newest run in the log."""
    lines = [line for line in log.read_text().splitlines() if f"event={Event.METRICS_LISTENING}" in line]
    return int(re.findall(r"port=(\d+)", lines[-1])[0])


def ask(log: Path, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port_of(log)}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def metric(log: Path, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels; 0 without samples."""
    status, text = ask(log, "/metrics")
    assert status == 200
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def failed_conditions(log: Path) -> set[str]:
    status, text = ask(log, "/readyz")
    answer: dict[str, Any] = json.loads(text)
    assert answer["ready"] is (status == 200)
    return {condition["name"] for condition in answer["conditions"] if not condition["ok"]}
