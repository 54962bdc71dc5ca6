"""Replay gangs with departures under all rules, and write bench/out/gang_replay.json.

    python -m bench.gang_replay FOLDER

FOLDER, or LADING_TRACES in the environment, is as for bench.placement. The workload is the one with the most pods of several
GPUs, on every 16th node of the trace; docs/simulate.md says how they become gangs. All rules have the same jobs, by seed.
`--docs` writes the tables into docs/performance.md, from the JSON of this run or, without a FOLDER, of the last one.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.figures import write_results
from bench.placement import DOCS, find_workloads
from bench.placement_table import signed, write_docs
from central.request.model import Policy
from lading.errors import ConfigError, LadingError, die
from simulate.gangs.model import Rules
from simulate.gangs.replay import GangsTask
from simulate.gangs.report import gangs_as_json, make_gang_reports
from simulate.model import Prior
from simulate.runs import run_all
from simulate.stream import Departures, Durations
from simulate.trace import Trace, read_pods

OUT: Final = Path("bench/out/gang_replay.json")
MARK: Final = "gang-replay"
BEGIN: Final = "<!-- {}: written by bench.gang_replay --docs -->"
WORKLOAD: Final = "multigpu40"
EVERY: Final = 16
LOADS: Final = (0.95, 1.1)
SEEDS: Final = range(1, 6)
QUICK: Final = range(1, 3)
SHOWN: Final = ("gangs of 2", "gangs of 4", "gangs of 8", "pods alone")

Results = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.gang_replay", description="How long gangs wait under several rules.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("LADING_TRACES"), help="[$LADING_TRACES]")
    parser.add_argument("--quick", action="store_true", help="two seeds: to see that it works, not to be quoted")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {DOCS}")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    try:
        if args.folder is not None:
            results = run(Path(args.folder), QUICK if args.quick else SEEDS)
            write_results(args.output, results)
        else:
            results = read_results(args.output)
        table = render(results["gangs"])
        if args.docs:
            write_docs(DOCS, {MARK: table}, begin=BEGIN)
    except LadingError as e:
        die(e)
    print(table)


def run(folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    nodes, workloads = find_workloads(folder)
    name = WORKLOAD if WORKLOAD in workloads else next(iter(workloads))
    trace = Trace(nodes=nodes[::EVERY], pods=read_pods(workloads[name]))
    loads: dict[str, Any] = {}
    for load in LOADS:
        game = Departures(durations=Durations.EXPONENTIAL, load=load)
        tasks = [GangsTask(rules, Policy.FRAGMENTATION, seed, game, Prior.WORKLOAD) for rules in Rules for seed in seeds]
        reports = make_gang_reports(run_all(trace, tasks, jobs=os.cpu_count() or 1, what=f"{name}, gangs"))
        loads |= gangs_as_json(reports, name, game)["gangs"][name]
    return {"every": EVERY, "gangs": {name: loads}}


def read_results(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {path}: {e}", hint="run python -m bench.gang_replay FOLDER first") from e
    return results


def render(gangs: Results) -> str:
    """Return the tables in Markdown: the figures, and Lading's less those of the others."""
    cells = list(_cells(gangs))
    head = "running | held idle | queued | " + " | ".join(f"wait: {label}" for label in SHOWN) + " | served | of due"
    columns = "|---" * (2 + 5 + len(SHOWN)) + "|"
    lines = [f"| offered load | rules | {head} |", columns]
    lines += [f"| {load} | {rules} | {_row(figures)} |" for load, by_rules in cells for rules, figures in by_rules.items()]
    lines += ["", f"| offered load | {Rules.LADING} less | {head} |", columns]
    lines += [
        f"| {load} | {rules} | {_less(figures['lading_less'])} |"
        for load, by_rules in cells
        for rules, figures in by_rules.items()
        if "lading_less" in figures
    ]
    return "\n".join(lines)


def _cells(gangs: Results) -> Iterator[tuple[str, Results]]:
    for loads in gangs.values():
        for load, by_durations in loads.items():
            for by_rules in by_durations.values():
                yield load, by_rules


def _row(figures: Results) -> str:
    waits = figures["waits_min"]
    shown = [f"{waits[label]['mean']:.1f} / {waits[label]['p99']:.0f}" if label in waits else "" for label in SHOWN]
    means = [f"{figures[name]:.2f}" for name in ("running", "idle", "queued")]
    return " | ".join([*means, *shown, f"{figures['spread']:.2f}", f"{figures['unfairness']:.2f}"])


def _less(differences: Results) -> str:
    keys = ["running", "idle", "queued", *(f"wait: {label}" for label in SHOWN), "spread", "unfairness"]
    return " | ".join(signed(differences[key]) if key in differences else "" for key in keys)


if __name__ == "__main__":
    main()
