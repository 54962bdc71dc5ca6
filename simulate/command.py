"""`lading-central simulate`: reads nodes and pods, replays them, prints what came of it."""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from central.ask.model import PartitionPolicy, Policy, Scope
from lading.errors import ConfigError, HostError
from simulate.cluster_file import read_cluster
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.pictures import draw_allocation, draw_fragments
from simulate.progress import Progress
from simulate.report import Report, as_json, make_reports, nodeless_models
from simulate.runs import Task, count_arrivals, run_tasks
from simulate.table import render_table
from simulate.trace import Trace, read_nodes, read_pods

POLICIES: Final[dict[str, AnyPolicy]] = {policy.value: policy for policy in (*Policy, *Baseline)}
_ALIASES: Final[dict[str, AnyPolicy]] = {"bestfit": Baseline.BEST_FIT}  # as bench.placement's JSON has it
_MOST_SEEDS: Final = 1000
_MOST_RATIO: Final = 10.0
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_SHOWN: Final = 80
_LISTED: Final = 3
_INTERRUPTED: Final = 130  # as a shell says it of SIGINT


def simulate(argv: Sequence[str]) -> None:
    """Run the command. Raise ConfigError."""
    args = _parser().parse_args(argv)
    ratio = _ratio(args.arrival_ratio)
    policies = _policies(args.policy or [Policy.FRAGMENTATION.value])
    if not 1 <= args.seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds {args.seeds}: from 1 to {_MOST_SEEDS} are possible")
    if args.seed < 0:  # Python's random numbers are of its absolute value
        raise ConfigError(f"--seed {args.seed}: 0 or more is possible")
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs {args.jobs}: 1 or more is possible", hint="without --jobs there are as many as CPUs")
    trace = read_trace(args.nodes, args.pods)
    check_knows(policies, trace)
    warn_of_models(trace)
    seeds, jobs = range(args.seed, args.seed + args.seeds), args.jobs or os.cpu_count() or 1
    try:
        reports = replay_all(trace, policies, seeds, ratio=ratio, prior=Prior(args.prior), jobs=jobs, what=args.pods.stem)
    except KeyboardInterrupt as e:
        raise SystemExit(_INTERRUPTED) from e
    if args.pictures:
        write_pictures(args.pictures, reports, what=args.pods.stem)
    if args.output == "json":
        print(json.dumps(as_json(reports, trace, ratio=ratio), indent=2))
    else:
        print(render_table(reports, trace, ratio=ratio))


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Read a trace. By their suffix, nodes are a cluster file (.json) or a CSV. Raise ConfigError."""
    if nodes.suffix == ".json":
        described = read_cluster(nodes)
        return Trace(nodes=described.nodes, pods=read_pods(pods), partition=described.partition)
    trace = Trace(nodes=read_nodes(nodes), pods=read_pods(pods))
    if any(pod.is_somewhere for pod in trace.pods):
        raise ConfigError(
            f"cannot replay {pods} on {nodes}: pods ask for rdma or a topology, and such a file does not say where devices are",
            hint="--nodes takes a cluster file too (.json), which names the NodeDevices of its nodes",
        )
    return trace


def check_knows(policies: Sequence[AnyPolicy], trace: Trace) -> None:
    """Check that the baselines support all that these pods require. Raise ConfigError."""
    baseline = next((policy for policy in policies if isinstance(policy, Baseline)), None)
    if baseline is None:
        return
    parted = any(node.devices is not None and node.devices.partitions for node in trace.nodes)
    beyond = [
        *(["rdma"] if any(pod.vfs for pod in trace.pods) else []),
        *(["a topology"] if any(pod.scope is not Scope.ANY for pod in trace.pods) else []),
        *(["whole NVSwitch partitions"] if parted and trace.partition is PartitionPolicy.HONOR else []),
    ]
    if beyond:
        raise ConfigError(
            f"--policy {baseline.value}: it knows of cards alone, and here pods have to have {' and '.join(beyond)}",
            hint=f"policies that do: {', '.join(Policy)}",
        )


def warn_of_models(trace: Trace) -> None:
    """Warn once on stderr of the pods that fit nowhere under any policy."""
    nowhere = nodeless_models(trace)
    if nowhere:
        listed = ", ".join(f"{models!r:.{_SHOWN}}" for models, _ in nowhere.most_common(_LISTED))
        more = f" and {len(nowhere) - _LISTED} more" if len(nowhere) > _LISTED else ""
        print(
            f"warning: {nowhere.total()} of {len(trace.pods)} pods ask in gpu_spec for models that no node has, and count as "
            f"failed: {listed}{more}",
            file=sys.stderr,
        )


def replay_all(
    trace: Trace,
    policies: Sequence[AnyPolicy],
    seeds: Sequence[int],
    *,
    ratio: float,
    prior: Prior,
    jobs: int,
    what: str,
) -> list[Report]:
    """Replay every policy on the same arrivals, with progress on stderr."""
    tasks = [Task(policy, seed, ratio, prior) for policy in policies for seed in seeds]
    progress = Progress(what, count_arrivals(trace, tasks))
    try:
        return make_reports(run_tasks(trace, tasks, jobs=jobs, tell=progress.advance), prior)
    finally:
        progress.end()


def write_pictures(folder: Path, reports: Sequence[Report], *, what: str) -> None:
    """Write the pictures. `what` begins the names of the files. Raise HostError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{what}-allocation.svg").write_text(draw_allocation(what, reports))
        (folder / f"{what}-fragments.svg").write_text(draw_fragments(what, reports))
    except OSError as e:
        raise HostError(f"cannot write pictures into {folder}: {e.strerror}") from e


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lading-central simulate",
        description="Replays a recorded cluster and its pods through the code that answers kube-scheduler: pods arrive in "
        "random order, are placed one by one, and none leaves. Says how much of the GPUs each policy gives out.",
        epilog="random, best-fit and fgd are baselines to compare with; only the others can be a cluster's policy.",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV: sn,cpu_milli,memory_mib,gpu,model; or .json: nodes by the NodeDevices that they report (docs/simulate.md)",
    )
    parser.add_argument(
        "--pods",
        type=Path,
        required=True,
        metavar="CSV",
        help="cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,rdma][,rdma_policy][,topology]",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(POLICIES)}; bestfit is best-fit; several with commas, on the same arrivals [fragmentation]",
    )
    parser.add_argument(
        "--arrival-ratio", default="1.3", metavar="R", help="pods arrive until they have asked for R times the GPUs [1.3]"
    )
    parser.add_argument("--seed", type=_whole, default=42, metavar="N", help="of the order of arrivals; the first of them [42]")
    parser.add_argument("--seeds", type=_whole, default=1, metavar="N", help="how many, one after the other [1]")
    parser.add_argument(
        "--prior",
        choices=[prior.value for prior in Prior],
        default=Prior.WORKLOAD.value,
        help="what fragmentation knows: how often each kind of pod comes, or only what has come so far [workload]",
    )
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write curves of allocation and fragments as SVG")
    parser.add_argument("--jobs", type=_whole, metavar="N", help="processes [as many as CPUs]")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


def _whole(text: str) -> int:
    """Parse a whole number. For an invalid one argparse names the flag and the text."""
    if not _WHOLE.fullmatch(text):  # int() would read 1_0 as 10
        raise argparse.ArgumentTypeError(f"a whole number is needed, and this is {text!r:.{_SHOWN}}")
    return int(text)


def _ratio(text: str) -> float:
    ratio = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < ratio <= _MOST_RATIO:
        raise ConfigError(f"--arrival-ratio {text!r:.{_SHOWN}}: a number above 0 and up to {_MOST_RATIO:g} is needed")
    return ratio


def _policies(given: Sequence[str]) -> list[AnyPolicy]:
    by_name = POLICIES | _ALIASES
    names = [name.strip() for text in given for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise ConfigError(f"--policy {name!r:.{_SHOWN}}: there is no such policy", hint=f"one of: {', '.join(POLICIES)}")
    return list(dict.fromkeys(by_name[name] for name in names))
