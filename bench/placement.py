"""Replay every workload of a trace under every policy, and write JSON and pictures.

    python -m bench.placement FOLDER

FOLDER, or LADING_TRACES in the environment, has one `*node_list*.csv` and a `*pod_list_NAME.csv` for each workload, as in
Alibaba's cluster-trace-gpu-v2023. The trace is not part of this repository. The ten seeds are those of the FGD paper; policies
are compared on the same arrivals. Further figures are the upper bound (bench/bound.py), and the times of a replay, a decision
and a joint search (bench/deciding.py, bench/joint.py). Finally every workload is replayed with departures
(bench/departures.py), by three seeds.

`--departures-only` makes only these last replays, and keeps the other figures of the last JSON. `--docs` writes the tables into
docs/performance.md, from the JSON of this run or, without a FOLDER, of the last one.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.bound import compute_bound
from bench.deciding import measure_decisions, measure_replay, measure_searches
from bench.departures import ONLINE, render_departures, replay_cells
from bench.figures import write_results
from bench.joint import measure_joint
from bench.placement_table import render, render_baselines, render_markdown, workloads_of, write_docs
from central.request.model import Policy
from lading.errors import ConfigError, LadingError, die
from simulate.command import write_pictures
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.pictures import draw_arrivals
from simulate.report import Report, make_reports, percent_of, render_allocation
from simulate.runs import ArrivalsTask, run_all
from simulate.trace import Trace, TraceNode, TracePod, read_nodes, read_pods

OUT: Final = Path("bench/out/placement.json")
DOCS: Final = Path("docs/performance.md")
RATIO: Final = 1.3
SEEDS: Final = range(42, 52)
QUICK: Final = range(42, 44)
DEPARTURE_SEEDS: Final = 3
KEYS: Final[Mapping[AnyPolicy, str]] = {
    Policy.FRAGMENTATION: "fragmentation",
    Baseline.FGD: "fgd",
    Baseline.BEST_FIT: "bestfit",
    Baseline.FIRST_FIT: "first-fit",
    Baseline.DOT_PRODUCT: "dot-product",
    Baseline.RANDOM: "random",
}
# Policies without knowledge of future pods. ONLINE learns from arrived pods; the other one begins with another workload's pods.
LEARNING: Final[Mapping[str, Prior]] = {ONLINE: Prior.ONLINE, "fragmentation_other": Prior.OTHER}
TIMED: Final = "default"  # workload in which decisions are timed, if the trace has it; its pods have times


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.placement", description="How much of a cluster's GPUs each policy gives out.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("LADING_TRACES"), help="[$LADING_TRACES]")
    parser.add_argument("--quick", action="store_true", help="two seeds: to see that it works, not to be quoted")
    parser.add_argument("--only", metavar="NAMES", help="workloads, with commas between")
    parser.add_argument("--departures-only", action="store_true", help="replay with departures only, keep the other figures")
    parser.add_argument(
        "--departure-seeds",
        type=int,
        choices=range(1, len(SEEDS) + 1),
        default=DEPARTURE_SEEDS,
        metavar="N",
        help=f"of replays with departures, up to {len(SEEDS)} [{DEPARTURE_SEEDS}]",
    )
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {DOCS}")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    try:
        if args.folder is not None:
            folder, only = Path(args.folder), args.only.split(",") if args.only else []
            if not args.departures_only:
                results = run(folder, QUICK if args.quick else SEEDS, only, args.output.parent / args.output.stem)
            else:
                results = read_results(args.output) if args.output.exists() else {}
            departures = run_departures(folder, QUICK if args.quick else SEEDS[: args.departure_seeds], only)
            results["departures"] = results.get("departures", {}) | departures
            write_results(args.output, results)
        elif args.docs:
            results = read_results(args.output)
        else:
            raise ConfigError("there is no folder with traces", hint="python -m bench.placement FOLDER, or set LADING_TRACES")
        tables = render_tables(results)
        if args.docs:
            write_docs(DOCS, tables)
    except LadingError as e:
        die(e)
    print("\n".join(filter(None, (render(results), tables.get("departures")))))


def read_results(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {path}: {e}", hint="run make bench-placement first") from e
    if workloads_of(results) and "replay_s_by_workload" not in results:
        raise ConfigError(
            f"cannot use {path}: it was written by an older bench.placement", hint="run make bench-placement first"
        )
    return results


def run(folder: Path, seeds: Sequence[int], only: Sequence[str], pictures: Path) -> dict[str, Any]:
    nodes, workloads = find_workloads(folder, only)
    every = {name: read_pods(path) for name, path in find_workloads(folder)[1].items()}
    results: dict[str, Any] = {"seeds": list(seeds), "arrivals": {}}
    bounds: dict[str, Any] = {}
    for name in workloads:
        other = most_different(name, every)
        trace = Trace(nodes=nodes, pods=every[name], expected=every[other])
        results[name] = {**replay_workload(trace, name, seeds, pictures), "other": other}
        results["arrivals"][name] = {
            policy.value: {asked: results[name][key][asked] for asked in ("80", "90", "100", "130")}
            for policy, key in KEYS.items()
        }
        print(f"{name}  upper bound", file=sys.stderr)
        bound = compute_bound(trace, [1.0, RATIO])
        bounds[name] = {"100": bound.at_load[1.0], "130": bound.at_load[RATIO], "saturation": bound.saturation}
    timed = TIMED if TIMED in workloads else next(iter(workloads))
    times = measure_replays(nodes, workloads, timed)
    print("decisions, joint searches", file=sys.stderr)
    trace = Trace(nodes=nodes, pods=read_pods(workloads[timed]))
    return {**results, "upper_bound": bounds, **times, **measure_decisions(trace), **measure_searches(), **measure_joint()}


def most_different(name: str, every: Mapping[str, Sequence[TracePod]]) -> str:
    """Return the name of the workload that differs most from the workload `name` in the part of GPUs that multi-GPU pods
    request."""
    own = _part_of_several(every[name])
    return max(every, key=lambda other: abs(_part_of_several(every[other]) - own))


def _part_of_several(pods: Sequence[TracePod]) -> float:
    return sum(pod.milli for pod in pods if pod.whole > 1) / sum(pod.milli for pod in pods)


def run_departures(folder: Path, seeds: Sequence[int], only: Sequence[str]) -> dict[str, Any]:
    nodes, workloads = find_workloads(folder, only)
    return replay_cells(nodes, workloads, find_workloads(folder)[1].get(TIMED), seeds)


def render_tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of the docs that have figures, by the names of their marks."""
    tables = {"placement": render_markdown(results), "baselines": render_baselines(results)} if workloads_of(results) else {}
    return tables | ({"departures": render_departures(results["departures"])} if "departures" in results else {})


def measure_replays(nodes: tuple[TraceNode, ...], workloads: Mapping[str, Path], timed: str) -> dict[str, Any]:
    """Replay one seed of each workload. Return seconds of one core; `replay_s` is that of `timed`."""
    took = {}
    for name, path in workloads.items():
        print(f"{name}  one replay", file=sys.stderr)
        took[name] = measure_replay(Trace(nodes=nodes, pods=read_pods(path)), RATIO)
    slowest = max(took, key=lambda name: took[name])
    return {
        "replay_s": took[timed],
        "replay_max_s": took[slowest],
        "replay_max_workload": slowest,
        "replay_s_by_workload": took,
    }


def replay_workload(trace: Trace, name: str, seeds: Sequence[int], pictures: Path) -> dict[str, Any]:
    jobs = os.cpu_count() or 1
    tasks = [ArrivalsTask(policy, seed, RATIO, Prior.WORKLOAD) for policy in KEYS for seed in seeds]
    reports = make_reports(run_all(trace, tasks, jobs=jobs, what=name), Prior.WORKLOAD)
    write_pictures(pictures, draw_arrivals(name, reports))
    fgd = next(report for report in reports if report.policy is Baseline.FGD)
    result = {KEYS[report.policy]: figures(report) for report in reports}
    for key, prior in LEARNING.items():
        tasks = [ArrivalsTask(Policy.FRAGMENTATION, seed, RATIO, prior) for seed in seeds]
        learning = run_all(trace, tasks, jobs=jobs, what=f"{name}, {prior.value} prior")
        compared, _ = make_reports([*learning, *fgd.runs], prior)
        result[key] = figures(compared)
    return result


def figures(report: Report) -> dict[str, Any]:
    result: dict[str, Any] = {
        **render_allocation(report, percent_of(RATIO)),
        "failures_by_class": dict(report.failures),
        "decision_ms": report.decision_ms,
        "per_seed": [render_allocation(run, percent_of(RATIO)) for run in report.runs],
    }
    if report.to_fgd is not None:
        at_capacity, at_end = report.to_fgd
        result["to_fgd"] = {"100": at_capacity._asdict(), "130": at_end._asdict()}
    return result


def find_workloads(folder: Path, only: Sequence[str] = ()) -> tuple[tuple[TraceNode, ...], dict[str, Path]]:
    """Return the nodes, and the files of pods by the name of the workload. Raises ConfigError."""
    lists = sorted(folder.glob("*node_list*.csv"))
    if len(lists) != 1:
        raise ConfigError(f"cannot use {folder}: {len(lists)} files are named *node_list*.csv, one is needed")
    result = {path.stem.partition("pod_list_")[2]: path for path in sorted(folder.glob("*pod_list_*.csv"))}
    workloads = {name: path for name, path in result.items() if not only or name in only}
    missing = sorted(set(only) - set(result))
    if missing or not workloads:
        raise ConfigError(f"cannot use {folder}: there is no *pod_list_{missing[0] if missing else ''}*.csv")
    return read_nodes(lists[0]), workloads


if __name__ == "__main__":
    main()
