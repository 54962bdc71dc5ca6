"""Replay every workload with departures under every policy: the part `departures` of bench.placement's JSON.

By workload, offered load, durations and policy, with the keys of `lading-central simulate --departures` (docs/simulate.md), on
every 8th node of the trace, so that all cells take less than an hour. Pods of a file without times run as long as those of the
same name in another workload.

The tables of docs/performance.md have means over cells, and differences to FGD. A cell is one workload, offered load and kind
of durations. Differences are paired by cell and seed. A ratio of waits is the sum of the mean waits of all cells and seeds to
the sum of FGD's.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from bench.placement_table import signed
from central.request.model import Policy
from simulate.departure_report import load_key, make_stay_reports, render_policies
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.report import difference_of
from simulate.runs import DeparturesTask, run_all
from simulate.stream import Departures, Durations
from simulate.trace import Trace, TraceNode, read_lifetimes, read_pods

LOADS: Final = (0.80, 0.90, 0.95, 1.05)
EVERY: Final = 8
ONLINE: Final = "fragmentation_online"
POOLED: Final = "pooled"
POLICIES: Final[Sequence[AnyPolicy]] = (
    Policy.FRAGMENTATION,
    Baseline.FGD,
    Baseline.BEST_FIT,
    Baseline.FIRST_FIT,
    Baseline.DOT_PRODUCT,
    Baseline.RANDOM,
)


def replay_cells(
    nodes: Sequence[TraceNode], workloads: Mapping[str, Path], times: Path | None, seeds: Sequence[int]
) -> dict[str, Any]:
    """Replay all cells. `times`: a file of pods with times, which pods of files without times get. ONLINE is Lading's policy
    without knowledge of future pods; POOLED is the result of a cluster with a single node."""
    result: dict[str, Any] = {}
    for name, path in workloads.items():
        pods = read_pods(path)
        lifetimes = read_lifetimes(path, pods, None if has_times(path) else times)
        trace = Trace(nodes=tuple(nodes[::EVERY]), pods=pods, lifetimes=lifetimes)
        beside: dict[str, tuple[Trace, AnyPolicy, Prior]] = {
            ONLINE: (trace, Policy.FRAGMENTATION, Prior.ONLINE),
            POOLED: (pooled(trace), Baseline.BEST_FIT, Prior.WORKLOAD),
        }
        for load in LOADS:
            for durations in Durations:
                game, what = Departures(durations=durations, load=load), f"{name}, load {load}, {durations.value}"
                play = partial(_replay, seeds=seeds, game=game, what=what)
                cell = play(trace, POLICIES, prior=Prior.WORKLOAD)
                for key, (on, policy, prior) in beside.items():
                    cell[key] = play(on, [policy], prior=prior)[policy.value]
                result.setdefault(name, {}).setdefault(load_key(load), {})[durations.value] = cell
    return result


def _replay(
    trace: Trace, policies: Sequence[AnyPolicy], *, seeds: Sequence[int], game: Departures, prior: Prior, what: str
) -> dict[str, Any]:
    tasks = [DeparturesTask(policy, seed, game, prior) for policy in policies for seed in seeds]
    return render_policies(make_stay_reports(run_all(trace, tasks, jobs=os.cpu_count() or 1, what=what), prior))


def pooled(trace: Trace) -> Trace:
    """Return the trace with one node that has the sum of all nodes' resources, and cards of any model. On that node only
    shares leave parts of cards unused. The difference to the trace is the loss by the limits of nodes and models."""
    node = TraceNode(
        name="pool",
        cpu_milli=sum(node.cpu_milli for node in trace.nodes),
        memory_mib=sum(node.memory_mib for node in trace.nodes),
        gpus=sum(node.gpus for node in trace.nodes),
        model="",
    )
    return replace(trace, nodes=(node,), pods=tuple(replace(pod, models=()) for pod in trace.pods))


def has_times(pods: Path) -> bool:
    with pods.open() as lines:
        return "deletion_time" in lines.readline()


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
