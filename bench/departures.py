"""Replay every workload with departures under every policy: the part `departures` of bench.placement's JSON.

By workload, offered load, durations and policy, with the keys of `lading-central simulate --departures` (docs/simulate.md), on
every 8th node of the trace, so that all cells take less than an hour. Pods of a file without times run as long as those of the
same name in another workload.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from central.ask.model import Policy
from simulate.command import replay_all_departures
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.stays import load_key, render_policies
from simulate.stream import Departures, Durations
from simulate.trace import Trace, TraceNode, read_lifetimes, read_pods

LOADS: Final = (0.80, 0.90, 0.95, 1.05)
EVERY: Final = 8
ONLINE: Final = "fragmentation_online"
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
    """Replay all cells. `times`: the file of pods whose times those of files without times have. ONLINE is the product's policy
    without any knowledge of the pods that come."""
    jobs = os.cpu_count() or 1
    found: dict[str, Any] = {}
    for name, path in workloads.items():
        pods = read_pods(path)
        lifetimes = read_lifetimes(path, pods, None if has_times(path) else times)
        trace = Trace(nodes=tuple(nodes[::EVERY]), pods=pods, lifetimes=lifetimes)
        for load in LOADS:
            for durations in Durations:
                game, what = Departures(durations=durations, load=load), f"{name}, load {load}, {durations.value}"
                play = partial(replay_all_departures, trace, seeds=seeds, game=game, jobs=jobs, what=what)
                known, online = play(POLICIES, prior=Prior.WORKLOAD), play([Policy.FRAGMENTATION], prior=Prior.ONLINE)
                cell = render_policies(known) | {ONLINE: render_policies(online)[Policy.FRAGMENTATION]}
                found.setdefault(name, {}).setdefault(load_key(load), {})[durations.value] = cell
    return found


def has_times(pods: Path) -> bool:
    with pods.open() as lines:
        return "deletion_time" in lines.readline()
