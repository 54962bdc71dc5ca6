"""Decide whether the hook server can do all of its work: the conditions of `/readyz`.

`/readyz` answers 200 only if all required conditions hold. An unhealthy free device is a metric and no condition, because the
other devices are still assigned. A held device that became unhealthy, or a missing report to central, fails only a condition
that is not required, because the rest of the node works as before.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hooks.daemon.settings import max_age_s
from hooks.node.bypass import Bypassed
from lading.amounts import first_few
from lading.health import Condition

_NAMED = 3  # maximum number of bypassed containers, and of unhealthy devices, that a condition names
_STALE_S = 60.0  # seconds without a report before the condition fails; an upgrade of the API server takes less


def decide_ready(
    *,
    inventory_age_s: float,
    inventory_interval_s: float,
    reconcile_age_s: float,
    reconcile_interval_s: float,
    ledger: str,
    socket: str,
    bypassed: Sequence[Bypassed],
    driver_files: str = "",
    cdi: str | None = None,
    unhealthy: Sequence[str] = (),
    denied: Sequence[str] = (),
    report_stale_s: float | None = None,
    report_failure: str = "",
    taint_failure: str | None = None,
    front_ends: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Condition, ...]:
    """Decide the conditions. `ledger`, `socket`, `driver_files` and `cdi` are errors, or empty; `cdi` is None if cards are not
    given by CDI. `denied` lists the files that cannot be opened. `report_stale_s` is None if the node does not report.
    `taint_failure`: the reason why the node's taint may be wrong, or None if Lading does not taint the node. `front_ends`: the
    error of each front end's condition, by name, or empty."""
    names = [f"{one.namespace}/{one.pod_name}/{one.container}" for one in bypassed]
    went_past = f"containers that run without their devices: {first_few(names, _NAMED)}" if bypassed else ""
    return (
        Condition.unless(_too_old(inventory_age_s, inventory_interval_s, "devices were last read"), name="inventory"),
        Condition.unless(
            _too_old(reconcile_age_s, reconcile_interval_s, "the runtime's lists were last compared"), name="reconciled"
        ),
        Condition.unless(ledger, name="ledger"),
        Condition.unless(socket, name="socket"),
        *(Condition.unless(problem, name=name) for name, problem in front_ends.items()),
        Condition.unless(went_past, name="no-bypass"),
        Condition.unless(driver_files, name="driver-files"),
        *([] if cdi is None else [Condition.unless(cdi, name="cdi")]),
        Condition.unless(first_few(unhealthy, _NAMED, between="; "), name="held-devices", required=False),
        Condition.unless("; ".join(denied), name="files", required=False),
        *([] if taint_failure is None else [Condition.unless(taint_failure, name="node-taint", required=False)]),
        *([] if report_stale_s is None else [_reported(report_stale_s, report_failure)]),
    )


def _reported(stale_s: float, failure: str) -> Condition:
    late = f"central may not know of this node's devices for {stale_s:.0f} s" if stale_s > _STALE_S else ""
    return Condition.unless(late and f"{late}: {failure or 'nothing was reported yet'}", name="reported", required=False)


def _too_old(age_s: float, interval_s: float, what: str) -> str:
    if age_s <= max_age_s(interval_s):
        return ""
    return f"{what} {age_s:.0f} s ago" if age_s != float("inf") else f"{what}: never"
