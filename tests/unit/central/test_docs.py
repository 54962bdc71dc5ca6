"""docs/central.md names every reason, metric and event of central, and no other."""

import re
from typing import Final

from central.api.lease import Terms
from central.evict import NOMINATION_S, SPARED_S
from central.fit.model import Missing
from central.metrics import Metrics
from central.scheduler import ELSEWHERE, ENDED, PREDICTION_S
from central.wake import LOOK_S as WAKE_LOOK_S
from central.warn import AT_ONCE, LOOK_S, QUIET_S
from lading.log import Event
from tests.docs import ROOT, first_cells, section

PAGE: Final = "central.md"


def test_reasons() -> None:
    reasons = first_cells(section(PAGE, "## Why a pod waits"))
    assert reasons == sorted(reasons, key=_unresolvable)
    assert set(reasons) == {*(missing.value for missing in Missing), ELSEWHERE, ENDED}


def _unresolvable(reason: str) -> bool:
    """The page says that the first ones can change."""
    return reason in {ELSEWHERE, ENDED} or Missing(reason).unresolvable


def test_numbers() -> None:
    terms = Terms()
    seconds = {terms.retry_s, terms.renew_deadline_s, terms.duration_s, terms.request_timeout_s}
    assert {float(number) for number in re.findall(r"([\d.]+) s\b", section(PAGE, "## Replicas").split("\n\n- ")[0])} == seconds
    assert f"{PREDICTION_S:g} s" in section(PAGE, "## What it decides")
    assert f"every {WAKE_LOOK_S:g} s" in section(PAGE, "## Wake")
    assert {f"every {QUIET_S:g} s", f"{AT_ONCE / LOOK_S:g} pods a second"} <= set(
        re.findall(r"every \d+ s|\d+ pods a second", section(PAGE, "## Devices that fall ill"))
    )
    assert {f"{SPARED_S:g} s", f"{NOMINATION_S:g} s"} <= set(re.findall(r"\d+ s\b", section(PAGE, "## Preemption")))


def test_metrics() -> None:
    source = (ROOT / "central/metrics.py").read_text()
    registered = {metric.name: metric.type for metric in Metrics(lambda: None, lambda: False).registry.collect()}
    named = set(re.findall(r'"(lading_(?:central|build)_\w+)"', source))
    assert named >= {name for name in registered if name.startswith("lading_")}
    expected = {f"{name}_total" if registered.get(name) == "counter" else name for name in named}
    assert set(first_cells(section(PAGE, "## Metrics"))) == expected


def test_events() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "central").rglob("*.py"))
    used = {Event[name].value for name in re.findall(r"\bEvent\.([A-Z_]+)\b", sources)}
    assert set(first_cells(section(PAGE, "## The log"))) == {event for event in used if not event.startswith("daemon.")}
