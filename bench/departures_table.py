"""Render the figures of replays with departures as tables of docs/performance.md: means over cells, and differences to FGD.

A cell is one workload, offered load and kind of durations. Differences are paired by cell and seed. A ratio of waits is the sum
of the mean waits of all cells and seeds to the sum of FGD's.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from bench.placement_table import signed
from simulate.report import difference_of

FULL_LOAD: Final = 1.0  # beyond it, the queue grows as long as the replay goes on
_FGD: Final = "fgd"
_OURS: Final = "fragmentation"
_BASELINES: Final = ("fgd", "best-fit", "first-fit")  # the best of which, by what is allocated, the product's is compared with
_WAITS: Final = ("delay_8gpu", "delay_4gpu", "delay_1gpu", "delay_share")
_HEAD: Final = "allocated | queued | allocated, to FGD | queued, to FGD | wait to FGD's: 8 GPUs | 4 GPUs | 1 GPU | shares"
_COLUMNS: Final = 8

Results = Mapping[str, Any]


class Cell(NamedTuple):
    workload: str
    load: str
    policies: Results


def render_departures(departures: Results) -> str:
    """Return two tables in Markdown: all policies by load, and Lading's policy by workload."""
    cells = list(_cells(departures))
    below = [cell for cell in cells if float(cell.load) <= FULL_LOAD]
    beyond = [cell for cell in cells if float(cell.load) > FULL_LOAD]
    lines = [f"| offered load | policy | {_HEAD} |", "|---" * (2 + _COLUMNS) + "|"]
    for group in filter(None, (below, beyond)):
        loads = ", ".join(dict.fromkeys(cell.load for cell in group))
        lines += [f"| {loads} | {policy} | {_row(group, policy)} |" for policy in group[0].policies]
    lines += ["", f"| workload, loads up to {FULL_LOAD:g} | {_HEAD} | allocated, to the best |", "|---" * (2 + _COLUMNS) + "|"]
    for name in departures:
        group = [cell for cell in below if cell.workload == name]
        best = max(_BASELINES, key=lambda policy: fmean(cell.policies[policy]["allocated"] for cell in group))
        to_best = signed(difference_of(_differences(group, _OURS, "allocated", best))._asdict())
        lines.append(f"| {name} | {_row(group, _OURS)} | {to_best} to {best} |")
    return "\n".join(lines)


def _cells(departures: Results) -> Iterator[Cell]:
    for workload, loads in departures.items():
        for load, by_durations in loads.items():
            for policies in by_durations.values():
                yield Cell(workload, load, policies)


def _row(cells: Sequence[Cell], policy: str) -> str:
    mean = [f"{fmean(cell.policies[policy][figure] for cell in cells):.2f}" for figure in ("allocated", "queued")]
    if policy == _FGD:
        return " | ".join([*mean, *[""] * (_COLUMNS - len(mean))])
    differences = [signed(difference_of(_differences(cells, policy, figure))._asdict()) for figure in ("allocated", "queued")]
    return " | ".join([*mean, *differences, *(_ratio(cells, policy, wait) for wait in _WAITS)])


def _differences(cells: Sequence[Cell], policy: str, figure: str, to: str = _FGD) -> list[float]:
    return [one[figure] - other[figure] for one, other in _pairs(cells, policy, to)]


def _ratio(cells: Sequence[Cell], policy: str, wait: str) -> str:
    waits = [(one[wait], fgd[wait]) for one, fgd in _pairs(cells, policy) if one[wait] is not None]
    fgds = sum(fgd for _, fgd in waits)
    return f"{sum(one for one, _ in waits) / fgds:.2f}" if fgds else "n/a"


def _pairs(cells: Sequence[Cell], policy: str, to: str = _FGD) -> Iterator[tuple[Results, Results]]:
    """Yield the figures of the two policies, by cell and seed."""
    for cell in cells:
        yield from zip(cell.policies[policy]["per_seed"], cell.policies[to]["per_seed"], strict=True)
