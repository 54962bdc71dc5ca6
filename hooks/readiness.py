"""When the hook server can do all of its work: what `/readyz` says, condition by condition.

Enters: how old inventory and comparison are, how the ledger's last write went, what was bypassed. Leaves: conditions; 200 only
if all hold. A device that is unhealthy is a metric, not a condition: the others are still given out.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from hooks.ledger.bypass import Bypassed
from lading.health import Condition

# An age may be three intervals, and a slow driver's or runtime's answer.
_INTERVALS = 3
_SLACK_S = 30.0
# Below it SQLite may fail to grow its log at the next grant.
_LEAST_FREE = 1 << 20
_NAMED = 3  # of the bypassed containers


def decide_ready(
    *,
    inventory_age_s: float,
    inventory_interval_s: float,
    reconcile_age_s: float,
    reconcile_interval_s: float,
    ledger: str,
    socket: str,
    bypassed: Sequence[Bypassed],
) -> tuple[Condition, ...]:
    """`ledger` and `socket` say what is wrong with them, or nothing."""
    names = [f"{one.namespace}/{one.pod_name}/{one.container}" for one in bypassed[:_NAMED]]
    more = f" and {len(bypassed) - _NAMED} more" if len(bypassed) > _NAMED else ""
    went_past = f"made past the proxy, without their devices: {', '.join(names)}{more}" if bypassed else ""
    return (
        _condition("inventory", _too_old(inventory_age_s, inventory_interval_s, "devices were last read")),
        _condition("reconciled", _too_old(reconcile_age_s, reconcile_interval_s, "the runtime's lists were last compared")),
        _condition("ledger", ledger),
        _condition("socket", socket),
        _condition("no-bypass", went_past),
    )


def find_ledger_problem(path: Path, last_write: str) -> str:
    """Why the next grant could not be recorded, as far as it shows before."""
    if last_write:
        return last_write
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} can not be written"
    found = os.statvfs(path.parent)
    free = found.f_bavail * found.f_frsize
    return f"{path.parent} has {free} bytes left" if free < _LEAST_FREE else ""


def _too_old(age_s: float, interval_s: float, what: str) -> str:
    if age_s <= _INTERVALS * interval_s + _SLACK_S:
        return ""
    return f"{what} {age_s:.0f} s ago" if age_s != float("inf") else f"{what}: never"


def _condition(name: str, problem: str) -> Condition:
    return Condition(name=name, ok=not problem, why=problem)
