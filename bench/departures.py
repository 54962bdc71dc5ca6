"""Replay every workload with departures under every policy: the part `departures` of bench.placement's JSON.

By workload, offered load, durations and policy, with the keys of `lading-central simulate --departures` (docs/simulate.md), on
every 8th node of the trace, so that all cells take less than an hour. Pods of a file without times run as long as those of the
same name in another workload.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from central.request.model import Policy
from simulate.departure_report import load_key, make_stay_reports, render_policies
from simulate.model import AnyPolicy, Baseline, Prior
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
