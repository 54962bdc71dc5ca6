"""Compare the figures of a run with the targets: percentiles, verdicts, a table. Parts that were not run are absent."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Results = Mapping[str, "float | Results"]

UNITS: Final = {"p50_us": "µs", "p99_us": "µs", "cpu_us": "µs CPU", "calls_per_s": "calls/s"}
COLUMNS: Final = ("direct", "relay", "fixed", "nri", "grpc_aio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    what: str
    measured: float
    limit: float
    at_most: bool
    unit: str

    @property
    def met(self) -> bool:
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit


def write_results(path: Path, results: object) -> None:
    """Write the results as JSON, and print the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {path}")


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least `share` of all (0 < share <= 1) do not exceed: a measured value."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def judge(results: Results) -> list[Verdict]:
    """Return one verdict for each target of which all figures exist."""
    return list(_verdicts(_flattened(results)))


def _verdicts(f: Mapping[str, float]) -> Iterator[Verdict]:
    def most(what: str, limit: float, unit: str, *needed: str) -> Iterator[Verdict]:
        if all(name in f for name in needed):
            numerator, *rest = (f[name] for name in needed)
            measured = numerator / rest[0] if unit == "x" else numerator - sum(rest)
            yield Verdict(what=what, measured=measured, limit=limit, at_most=True, unit=unit)

    yield from most("Version: what the relay adds, p50", 110, "µs", "version.relay.p50_us", "version.direct.p50_us")
    yield from most("Version: the relay's CPU a call", 50, "µs", "version.relay.cpu_us")
    yield from most("Version: that CPU to grpc.aio's", 1 / 9, "x", "version.relay.cpu_us", "version.grpc_aio.cpu_us")
    ratio = ("concurrent16.relay.calls_per_s", "concurrent16.grpc_aio.calls_per_s")
    if all(name in f for name in ratio):
        measured = f[ratio[0]] / f[ratio[1]]
        yield Verdict(what="16 callers: throughput to grpc.aio's", measured=measured, limit=7, at_most=False, unit="x")
    yield from most("2 MB list: to direct, p50", 1.6, "x", "list_2mb.relay.p50_us", "list_2mb.direct.p50_us")
    create = ("create_with_gpu_hook.relay.p50_us", "create_with_gpu_hook.direct.p50_us")
    yield from most("CreateContainer with the GPU hook: to direct, p50", 1.25, "x", *create)
    cpu_ms = [f[name] for name in ("create_remove_cpu_ms.relay", "create_remove_cpu_ms.hooks") if name in f]
    if len(cpu_ms) == 2:
        what = "Create and remove: CPU of proxy and hooks"
        yield Verdict(what=what, measured=sum(cpu_ms), limit=3, at_most=True, unit="ms")
    yield from most("RSS, 8 connections", 60, "MB", "memory.start_mb")
    for after in ("200k_calls", "5k_creates"):
        yield from most(f"RSS: grown after {after}", FLAT_MB, "MB", f"memory.after_{after}_mb", "memory.start_mb")
    yield from most("A hook stuck: p99 of other calls to idle", 2, "x", "stuck_hook.stuck.p99_us", "stuck_hook.idle.p99_us")
    yield from most("Event loop: longest stall, 15 MB message held", 10, "ms", "loop_stall_max_ms")


# Allocator and caches settle within this; a leak of 50 bytes a call would be 10 MB after 200,000.
FLAT_MB: Final = 3.0


def render(results: Results, notes: Sequence[str]) -> str:
    lines = [f"{'':24}" + "".join(f"{name:>14}" for name in COLUMNS)]
    singles = []
    for name, part in results.items():
        if isinstance(part, Mapping) and set(part) <= set(COLUMNS):
            lines += _rows(name, part)
        else:
            singles += [f"{key:44}{value:10.1f}" for key, value in _flattened({name: part}).items()]
    lines += [*singles, "", f"{'to reach':54}{'measured':>10}{'limit':>10}"]
    for verdict in judge(results):
        sign = "<=" if verdict.at_most else ">="
        limit = f"{sign} {_short(verdict.limit)}"
        ok = "ok" if verdict.met else "MISSED"
        lines.append(f"{verdict.what:54}{_short(verdict.measured):>10}{limit:>10} {verdict.unit:3} {ok}")
    return "\n".join([*lines, "", *notes])


def _rows(name: str, part: Results) -> list[str]:
    flat = _flattened(part)
    measures = dict.fromkeys(key.partition(".")[2] for key in flat)
    rows = []
    for measure in measures:
        cells = [f"{flat[key]:14,.0f}" if (key := f"{column}.{measure}") in flat else f"{'-':>14}" for column in COLUMNS]
        rows.append(f"{name:22}  {''.join(cells)}  {UNITS.get(measure, measure)}")
    return rows


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _flattened(results: Results, prefix: str = "") -> dict[str, float]:
    out: dict[str, float] = {}
    for key, value in results.items():
        out |= _flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
