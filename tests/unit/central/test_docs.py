"""Check that the pages name every reason and event of central, and no others."""

import re
from typing import Final

from central.controllers.conditions import HEALTHY, UNHEALTHY
from central.controllers.device_health import AT_ONCE, LOOK_S, QUIET_S
from central.controllers.events import EventRecorder
from central.controllers.evict import CONFLICT, PREEMPTED, SPARED_S
from central.controllers.gangs import INCOMPLETE
from central.controllers.requeue import LOOK_S as WAKE_LOOK_S
from central.controllers.share_bypass import BYPASSED
from central.controllers.take_back import TAKEN_BACK
from central.daemon.leadership import NO_ASSIGNMENT
from central.daemon.lease import LeaseTerms
from central.decide.scheduler import PREDICTION_S
from central.ledger.claims import NOMINATION_S
from central.request.reasons import OfBinding, OfPod
from central.search.placement import Missing
from lading.log import Event
from lading.reasons import Reason
from tests.docs import ROOT, first_cells, section

PAGE: Final = "central.md"


def test_reasons() -> None:
    """Check that each reason is in the right table: whether waiting helps, or not."""
    waits = {missing.value for missing in Missing if not missing.unresolvable}
    assert _explained("## Central: the pod waits") == waits
    never = {code.value for code in (*Missing, *OfPod)} - waits
    assert _explained("## Central: the pod does not fit there") == never - {Reason.NOT_RECONCILED.value}  # with the nodes' own
    assert _explained("## Central: the pod is not bound") == {code.value for code in OfBinding}


def _explained(heading: str) -> set[str]:
    return set(re.findall(r"^### `([a-z-]+)`$", section("reasons.md", heading), re.MULTILINE))


def test_events_on_pods() -> None:
    told = {NO_ASSIGNMENT, PREEMPTED, INCOMPLETE, CONFLICT, UNHEALTHY, HEALTHY, BYPASSED, TAKEN_BACK}
    assert set(first_cells(section("reasons.md", "## Events of central"))) == told
    assert set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", (EventRecorder.__doc__ or "").split(":")[-1])) == told


def test_numbers() -> None:
    terms = LeaseTerms()
    seconds = {terms.retry_s, terms.renew_deadline_s, terms.duration_s, terms.request_timeout_s}
    assert {float(number) for number in re.findall(r"([\d.]+) s\b", section(PAGE, "## Replicas").split("\n\n- ")[0])} == seconds
    assert f"{PREDICTION_S:g} s" in section(PAGE, "## What it decides")
    assert f"every {WAKE_LOOK_S:g} s" in section(PAGE, "## Requeue")
    assert {f"every {QUIET_S:g} s", f"{AT_ONCE / LOOK_S:g} pods a second"} <= set(
        re.findall(r"every \d+ s|\d+ pods a second", section(PAGE, "## Unhealthy devices"))
    )
    assert {f"{SPARED_S:g} s", f"{NOMINATION_S:g} s"} <= set(re.findall(r"\d+ s\b", section(PAGE, "## Preemption")))


def test_events() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "central").rglob("*.py"))
    used = {Event[name].value for name in re.findall(r"\bEvent\.([A-Z_]+)\b", sources)}
    assert set(first_cells(section(PAGE, "## The log"))) == {event for event in used if not event.startswith("daemon.")}
