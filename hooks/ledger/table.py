"""Show a listing of devices: a table for a person, JSON for a program.

The JSON has all keys of docs/reference.md, always; times are ISO 8601 in UTC. The table has ages instead of times, and one line
per device, with one more for each further holder. Names from pods and the kernel are escaped for a terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from hooks.ledger.listing import Entry, Holder, Kind
from hooks.model.assignment import Form, GrantedGpu
from hooks.model.attachment import Attachment
from lading.amounts import format_mib
from lading.log import printable

_LAST_SECOND: Final = 253402300799  # Unix time of the last second of the year 9999, Python's last year
_HEAD: Final = ("DEVICE", "STATE", "AGE", "HELD BY", "WHY")


def as_json(entries: Iterable[Entry], *, ledger: str, now: int) -> dict[str, Any]:
    """Return the entries as JSON values. The keys are those of docs/reference.md, all of them always; an unknown or missing
    value is null."""
    return {"ledger": ledger, "at": iso(now), "devices": [_entry_json(entry) for entry in entries]}


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind.value,
        "device": entry.device,
        "bdf": entry.bdf,
        "name": entry.name or None,
        "state": entry.state.value,
        "why": entry.why or None,
        "since": iso(entry.since),
        "holders": [_holder_json(holder) for holder in entry.holders],
        "attachment": _attachment_json(entry.attachment) if entry.attachment else None,
    }


def _holder_json(holder: Holder) -> dict[str, Any]:
    grant, gpu = holder.grant, holder.gpu
    return {
        "pod_uid": grant.pod,
        "namespace": grant.namespace,
        "pod": grant.pod_name,
        "container": grant.container,
        "sandbox": grant.sandbox,
        "form": grant.form,
        "gen": grant.gen,
        "since": iso(grant.granted_at),
        "memory_mib": gpu.memory_mib if gpu else None,
        "core_percent": gpu.core_percent if gpu else None,
        "stopped_at": iso(holder.stopped_at),
    }


def _attachment_json(row: Attachment) -> dict[str, Any]:
    return {
        "pod_uid": row.pod,
        "namespace": row.namespace,
        "pod": row.pod_name,
        "sandbox": row.sandbox,
        "netns": row.netns,
        "ifname": row.ifname,
        "step": row.step.value,
        "generation": row.generation,
        "since": iso(row.since),
        "failure": row.failure or None,
    }


def iso(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(max(0, min(seconds, _LAST_SECOND)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_text(entries: Sequence[Entry], *, now: int) -> str:
    """Return one line per device, and one more for each further holder of it; the times are ages."""
    return in_columns([_HEAD, *(row for entry in entries for row in _rows(entry, now))])


def in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Align the rows in columns. The first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows)
    return "".join(line.rstrip() + "\n" for line in lines)


def _rows(entry: Entry, now: int) -> Iterator[tuple[str, ...]]:
    title, row = (_title(entry), entry.state.value), entry.attachment
    if not entry.holders:
        holder = f"{row.namespace}/{row.pod_name}" if row else ""
        yield _cells(*title, _age(entry.since, now), holder, "; ".join(entry.notes))
    for number, one in enumerate(entry.holders):
        since = row.since if row else one.grant.granted_at
        reason = "; ".join(filter(None, [_terms(one), one.note, *(entry.notes if number == 0 else ())]))
        yield _cells(*(title if number == 0 else ("", "")), _age(since, now), one.name, reason)


def _cells(*texts: str) -> tuple[str, ...]:
    """Escape names of pods and devices, and texts of the kernel, for a terminal."""
    return tuple(map(printable, texts))


def _title(entry: Entry) -> str:
    match entry.kind:
        case Kind.GPU:
            return " ".join(filter(None, ["GPU", entry.name, entry.bdf or entry.device]))
        case Kind.MIG:
            return f"  {entry.device}"
        case Kind.VF:
            return " ".join(filter(None, ["VF", entry.device, entry.name]))


def _terms(holder: Holder) -> str:
    """Describe the amount of the device, and who decided it."""
    form = holder.grant.form
    whose = "by hand" if form == Form.MANUAL else f"by central ({form}, gen {holder.grant.gen})"
    return ", ".join([*share_texts(holder.gpu), whose])


def share_texts(gpu: GrantedGpu | None) -> list[str]:
    """Return the amounts of a share, such as `8Gi` and `50%`; empty for a whole card, and for a VF."""
    memory, percent = (gpu.memory_mib, gpu.core_percent) if gpu else (None, None)
    return [*([] if memory is None else [format_mib(memory)]), *([] if percent is None else [f"{percent}%"])]


def _age(since: int | None, now: int) -> str:
    """Return an age: seconds up to two minutes, minutes up to two hours, hours up to two days."""
    if since is None:
        return ""
    seconds = max(0, now - since)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
