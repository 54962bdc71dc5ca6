"""Render the figures of bench.placement as text for a terminal, and as the table of docs/performance.md.

Each table is between two marks in the page, and only the text between them is replaced.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lading.errors import ConfigError
from simulate.report import Difference, difference_of

BEGIN: Final = "<!-- {}: written by bench.placement --docs -->"
END: Final = "<!-- {}: end -->"
# Against FGD at the end of arrivals, mean of ten seeds.
TO_REACH: Final = {"default": 0.3, "gpushare80": 0.8, "cpu250": 0.5, "gpuspec25": 0.7}
NOWHERE_BELOW: Final = -0.05
ONLINE_NOT_BELOW: Final = 0.0
BEHIND: Final = -0.2  # any baseline, at 80, 90 and 100 % of arrivals
OTHER_PRIOR: Final = -0.5  # with the prior of another workload, to the workload's own, at 100 %
STARVED: Final = 5.0  # points of a class of pods above FGD's
TIMES: Final = {
    "replay_s": 4.0,
    "replay_max_s": 4.0,
    "decision_p50_ms": 1.0,
    "joint_search_warm_p99_ms": 1.0,
    "joint_search_cold_ms": 20.0,
    "joint_cold_8x8_ms": 20.0,
    "joint_cold_16x16_ms": 200.0,
}
_BASELINES: Final = {
    "fgd": "FGD",
    "bestfit": "best-fit",
    "first-fit": "first-fit",
    "dot-product": "dot-product",
    "random": "random",
}
_OURS: Final = "fragmentation"
_OTHER: Final = "fragmentation_other"
_POLICIES: Final = ("random", "bestfit", "fgd", "fragmentation", "fragmentation_online")

_FILLING: Final = ("80", "90", "100")  # percent asked for

Results = Mapping[str, Any]


def workloads_of(results: Results) -> list[str]:
    return [name for name, part in results.items() if isinstance(part, Mapping) and "fgd" in part]


def render(results: Results) -> str:
    if not workloads_of(results):
        return ""
    lines = [
        f"{'allocated, percent':16}" + "".join(f"{name:>23}" for name in _POLICIES) + f"{'bound':>9}   fragmentation to fgd"
    ]
    for name in workloads_of(results):
        part = results[name]
        cells = "".join(f"{part[policy]['100']:>15.2f} {part[policy]['130']:7.2f}" for policy in _POLICIES)
        bound = results["upper_bound"][name]["saturation"]
        to_fgd = part["fragmentation"]["to_fgd"]["130"]
        least = TO_REACH.get(name, NOWHERE_BELOW)
        missed = "" if to_fgd["mean"] >= least else f"  MISSED {least:+.2f}"
        flaws = "".join(find(part) for find in (_starved, _online, _behind, _other))
        lines.append(f"{name:16}{cells}{bound:9.2f}   {signed(to_fgd)}{missed}{flaws}")
    for figure, most in TIMES.items():
        if figure in results:
            missed = "" if results[figure] <= most else "  MISSED"
            of = f"  {results['replay_max_workload']}" if figure == "replay_max_s" else ""
            lines.append(f"{figure:32}{results[figure]:9.3f}   <= {most:g}{missed}{of}")
    return "\n".join(lines)


def render_markdown(results: Results) -> str:
    rows = [
        "| workload | random | best-fit | FGD | Lading | to FGD | learned online | all fit up to | a replay |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    took = results["replay_s_by_workload"]
    for name in workloads_of(results):
        part = results[name]
        shown = [f"{part[policy]['130']:.2f}" for policy in ("random", "bestfit", "fgd")]
        to_fgd, online = (signed(part[policy]["to_fgd"]["130"]) for policy in ("fragmentation", "fragmentation_online"))
        bound = results["upper_bound"][name]["saturation"]
        cells = [*shown, f"**{part['fragmentation']['130']:.2f}**", to_fgd, online, f"{bound:.1f}", f"{took[name]:.1f} s"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def render_baselines(results: Results) -> str:
    """Return the table of the lead on the best baseline while the cluster is filled, and of the prior of another workload."""
    rows = ["| workload | 80 % | 90 % | 100 % | prior of | to its own, at 100 % |", "|---|---|---|---|---|---|"]
    for name in workloads_of(results):
        part = results[name]
        leads = [f"{part[_OURS][asked]:.2f}, {_signed_lead(part, asked)}" for asked in _FILLING]
        rows.append(f"| {name} | {' | '.join(leads)} | {part['other']} | {signed(to_own_prior(part)._asdict())} |")
    return "\n".join(rows)


def best_baseline(part: Results, asked: str) -> str:
    """Return the key of the baseline with the most allocated GPUs once arrivals have requested this percentage."""
    return max(_BASELINES, key=lambda key: float(part[key][asked]))


def lead(part: Results, asked: str) -> Difference:
    """Return the difference to the best baseline at that point, paired by seed."""
    return _difference(part[_OURS], part[best_baseline(part, asked)], asked)


def to_own_prior(part: Results) -> Difference:
    """Return the difference that the prior of another workload makes, paired by seed."""
    return _difference(part[_OTHER], part[_OURS], "100")


def _difference(one: Results, other: Results, asked: str) -> Difference:
    return difference_of([a[asked] - b[asked] for a, b in zip(one["per_seed"], other["per_seed"], strict=True)])


def _signed_lead(part: Results, asked: str) -> str:
    return f"{signed(lead(part, asked)._asdict())} to {_BASELINES[best_baseline(part, asked)]}"


def write_docs(path: Path, tables: Mapping[str, str], *, begin: str = BEGIN) -> None:
    """Write the tables into the docs, by the names of their marks. Raises ConfigError where these are missing."""
    text = path.read_text()
    for name, table in tables.items():
        first, last = begin.format(name), END.format(name)
        before, result, rest = text.partition(first)
        _, end, after = rest.partition(last)
        if not result or not end:
            raise ConfigError(f"cannot write the table into {path}: {first} or {last} is missing")
        text = f"{before}{result}\n{table}\n{end}{after}"
    path.write_text(text)


def signed(difference: Mapping[str, float | None]) -> str:
    error = difference["error"]
    return f"{difference['mean']:+.2f}" + ("" if error is None else f" ± {error:.2f}")


def _starved(part: Results) -> str:
    ours, fgd = part["fragmentation"]["failures_by_class"], part["fgd"]["failures_by_class"]
    far = [f"{label} {ours[label] - fgd[label]:+.1f}" for label in ours if ours[label] > fgd[label] + STARVED]
    return f"  STARVED {', '.join(far)}" if far else ""


def _behind(part: Results) -> str:
    far = [f"{asked} % {_signed_lead(part, asked)}" for asked in _FILLING if lead(part, asked).mean < BEHIND]
    return f"  BEHIND {', '.join(far)}" if far else ""


def _other(part: Results) -> str:
    mean = to_own_prior(part).mean
    return "" if mean >= OTHER_PRIOR else f"  OTHER PRIOR {mean:+.2f}"


def _online(part: Results) -> str:
    mean = part["fragmentation_online"]["to_fgd"]["130"]["mean"]
    return "" if mean >= ONLINE_NOT_BELOW else f"  ONLINE BELOW FGD {mean:+.2f}"
