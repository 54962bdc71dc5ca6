"""Check that the pages name every event of central, and no others."""

import re
from typing import Final

from central.controllers.device_health import AT_ONCE, QUIET_S, SCAN_S
from central.controllers.evict import SPARED_S
from central.controllers.requeue import SCAN_S as REQUEUE_SCAN_S
from central.daemon.lease import LeaseTerms
from central.decide.scheduler import PREDICTION_S
from central.ledger.claims import NOMINATION_S
from lading.log import Event
from tests.docs import ROOT, first_cells, section

PAGE: Final = "central.md"


def test_numbers() -> None:
    terms = LeaseTerms()
    seconds = {terms.retry_s, terms.renew_deadline_s, terms.duration_s, terms.request_timeout_s}
    assert {float(number) for number in re.findall(r"([\d.]+) s\b", section(PAGE, "## Replicas").split("\n\n- ")[0])} == seconds
    assert f"{PREDICTION_S:g} s" in section(PAGE, "## What it decides")
    assert f"every {REQUEUE_SCAN_S:g} s" in section(PAGE, "## Requeue")
    assert {f"every {QUIET_S:g} s", f"{AT_ONCE / SCAN_S:g} pods a second"} <= set(
        re.findall(r"every \d+ s|\d+ pods a second", section(PAGE, "## Unhealthy devices"))
    )
    assert {f"{SPARED_S:g} s", f"{NOMINATION_S:g} s"} <= set(re.findall(r"\d+ s\b", section(PAGE, "## Preemption")))


def test_events() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "central").rglob("*.py"))
    used = {Event[name].value for name in re.findall(r"\bEvent\.([A-Z_]+)\b", sources)}
    assert set(first_cells(section(PAGE, "## The log"))) == {event for event in used if not event.startswith("daemon.")}
