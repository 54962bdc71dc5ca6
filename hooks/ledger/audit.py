"""Show the history of a device's holders, or of a pod's devices, since a time: to a person as a table, or as JSON.

Each device of a period has one line, in the order in which the periods began, newest last. The JSON has all keys of
docs/reference.md, always; times are ISO 8601 in UTC. `parse_since` refuses a text that is neither a time nor a length of time.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hooks.ledger.listing import Kind
from hooks.ledger.period import Began, Ended, Period
from hooks.ledger.table import in_columns, iso, share_texts
from hooks.model.assignment import Form, GrantedGpu
from lading.devices.identity import shown
from lading.errors import ConfigError
from lading.log import printable

_HEAD: Final = ("SINCE", "UNTIL", "DEVICE", "HELD BY", "TERMS", "ENDED")
_AGO: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    kind: Kind
    device: str
    period: Period
    gpu: GrantedGpu | None = None  # None: a VF

    @property
    def card(self) -> str:
        """Return the UUID of the GPU, or of the MIG instance's GPU; empty for a VF."""
        return self.gpu.uuid if self.gpu else ""


def parse_since(text: str, now: int) -> int:
    """Return Unix seconds: `7d` is seven days ago; otherwise an ISO 8601 date or time, in UTC if it names no other zone."""
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        result = datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError(
            f"cannot read --since {shown(text)}: expected a time or a duration",
            hint="--since 7d (or s, m, h, w), --since 2026-11-01, --since 2026-11-01T12:00:00Z",
        ) from e
    return int((result if result.tzinfo else result.replace(tzinfo=UTC)).timestamp())


def list_entries(periods: Iterable[Period], *, devices: frozenset[str] | None = None, pod: str = "") -> tuple[AuditEntry, ...]:
    """List the entries of these devices and this pod, oldest first. `devices`: names, where a card's name includes its MIG
    instances; None: all. `pod`: a uid, a name, or namespace/name; empty: all."""
    ordered = sorted(periods, key=lambda period: period.since)
    result = (entry for period in ordered if _is_of(period, pod) for entry in _entries(period))
    return tuple(entry for entry in result if devices is None or not devices.isdisjoint((entry.device, entry.card)))


def _is_of(period: Period, pod: str) -> bool:
    return pod in {"", period.pod, period.pod_name, f"{period.namespace}/{period.pod_name}"}


def _entries(period: Period) -> Iterator[AuditEntry]:
    for gpu in period.devices.gpus:
        kind = Kind.MIG if gpu.mig_uuid else Kind.GPU
        yield AuditEntry(kind=kind, device=gpu.mig_uuid or gpu.uuid, period=period, gpu=gpu)
    for vf in period.devices.vfs:
        yield AuditEntry(kind=Kind.VF, device=vf.bdf, period=period)


def as_json(entries: Iterable[AuditEntry], *, ledger: str, now: int) -> dict[str, Any]:
    """Return the entries as JSON values. An unknown or missing value is null."""
    return {"ledger": ledger, "at": iso(now), "entries": [_entry_json(entry) for entry in entries]}


def _entry_json(entry: AuditEntry) -> dict[str, Any]:
    period, gpu, end = entry.period, entry.gpu, entry.period.end
    return {
        "kind": entry.kind.value,
        "device": entry.device,
        "card": entry.card or None,
        "memory_mib": gpu.memory_mib if gpu else None,
        "core_percent": gpu.core_percent if gpu else None,
        "pod_uid": period.pod,
        "namespace": period.namespace,
        "pod": period.pod_name,
        "container": period.container,
        "form": str(period.form),
        "gen": period.gen,
        "key_id": period.key_id or None,
        "began": period.began.value,
        "since": iso(period.since),
        "until": iso(end.at if end else None),
        "ended": end.how.value if end else None,
        "ended_by_uid": end.uid if end else None,
    }


def as_text(entries: Iterable[AuditEntry]) -> str:
    return in_columns([_HEAD, *map(_row, entries)])


def _row(entry: AuditEntry) -> tuple[str, ...]:
    period = entry.period
    holder = f"{period.namespace}/{period.pod_name} {period.container}"
    cells = (iso(period.since) or "", iso(period.until) or "", entry.device, holder, _terms(entry), _ended(period))
    return tuple(map(printable, cells))


def _terms(entry: AuditEntry) -> str:
    """Describe the amount of the device, and who decided it."""
    period = entry.period
    terms = share_texts(entry.gpu)
    if period.form == Form.MANUAL:
        terms.append("by hand")
    else:
        key = f", key {period.key_id}" if period.key_id else ""
        terms.append(f"by central ({period.form}, gen {period.gen}{key})")
    return ", ".join([*terms, *(["adopted"] if period.began is Began.ADOPTED else [])])


def _ended(period: Period) -> str:
    if period.end is None:
        return "held"
    return f"forced by uid {period.end.uid}" if period.end.how is Ended.FORCED else period.end.how.value
