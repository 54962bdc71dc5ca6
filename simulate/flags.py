"""Parse the flags of `lading-central simulate` into Options. An error names flag, value, and possible values.

Tests: tests/unit/simulate/test_pictures.py
"""

import argparse
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from central.request.model import Policy
from lading.errors import ConfigError
from simulate.gangs.model import Rules
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.stream import Departures, Durations

POLICIES: Final[dict[str, AnyPolicy]] = {policy.value: policy for policy in (*Policy, *Baseline)}
_ALIASES: Final[dict[str, AnyPolicy]] = {"bestfit": Baseline.BEST_FIT}  # name in bench.placement's JSON
_MOST_SEEDS: Final = 1000
_MOST_RATIO: Final = 10.0
_MOST_PATIENCE: Final = 100.0  # in units; longer than any replay
_MOST_LOAD: Final = 2.0  # at a higher load, nearly all pods wait until the end
_RATIO: Final = "1.3"
_LOAD: Final = "0.95"
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: Path
    every: int  # take every n-th node; 1: all
    pods: Path
    durations_from: Path | None
    policies: Sequence[AnyPolicy]
    prior: Prior
    prior_from: Path | None  # file with the expected pods of Prior.OTHER
    seeds: Sequence[int]
    ratio: float
    departures: Departures | None  # None: no pod ends
    gangs: Sequence[Rules]  # rules to start gangs of pods with several GPUs; empty: no gangs
    jobs: int
    pictures: Path | None
    as_json: bool


def parse_flags(argv: Sequence[str]) -> Options:
    """Parse the flags. Raise ConfigError; argparse exits on a flag that it cannot parse."""
    args = _parser().parse_args(argv)
    policies, gangs = _policies(args.policy or [Policy.FRAGMENTATION.value]), _gangs(args)
    if gangs and (len(policies) > 1 or not isinstance(policies[0], Policy)):
        raise ConfigError(
            f"--policy {','.join(policies)}: with --gangs one policy of the product is needed",
            hint=f"all rules choose nodes by it; one of: {', '.join(Policy)}",
        )
    if not 1 <= args.seeds <= _MOST_SEEDS:
        raise ConfigError(f"--seeds {args.seeds}: from 1 to {_MOST_SEEDS} are possible")
    if args.seed < 0:  # Python's random numbers depend on the absolute value of the seed only
        raise ConfigError(f"--seed {args.seed}: 0 or more is possible")
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs {args.jobs}: 1 or more is possible", hint="without --jobs there are as many as CPUs")
    if args.every < 1:
        raise ConfigError(f"--every {args.every}: 1 or more is possible", hint="1 takes each node, 8 the first of each eight")
    return Options(
        nodes=args.nodes,
        every=args.every,
        pods=args.pods,
        durations_from=args.durations_from,
        policies=policies,
        prior=_prior(args),
        prior_from=args.prior_from,
        seeds=range(args.seed, args.seed + args.seeds),
        ratio=_number("--arrival-ratio", args.arrival_ratio, _RATIO, _MOST_RATIO),
        departures=_departures(args),
        gangs=gangs,
        jobs=args.jobs or os.cpu_count() or 1,
        pictures=args.pictures,
        as_json=args.output == "json",
    )


def _gangs(args: argparse.Namespace) -> Sequence[Rules]:
    """Return the rules of --gangs without duplicates. Raise ConfigError."""
    if args.gangs is None:
        return ()
    by_name = {rules.value: rules for rules in Rules}
    names = [name.strip() for name in args.gangs.split(",")]
    for name in names:
        if name not in by_name:
            raise ConfigError(f"--gangs {name!r:.{_SHOWN}}: there are no such rules", hint=f"one of: {', '.join(Rules)}")
    if args.departures is None:
        raise ConfigError(
            f"--gangs {args.gangs!r:.{_SHOWN}}: it applies with --departures only", hint="--departures exponential"
        )
    if args.pictures is not None:
        raise ConfigError(f"--pictures {args.pictures}: it does not apply with --gangs", hint="-o json has all figures")
    return list(dict.fromkeys(by_name[name] for name in names))


def _departures(args: argparse.Namespace) -> Departures | None:
    if args.durations_from and args.departures != Durations.TRACE:
        raise ConfigError(
            f"--durations-from {args.durations_from}: it applies with --departures {Durations.TRACE.value} only",
            hint="exponential durations need no times of pods",
        )
    if args.departures is None:
        if args.load is not None:
            raise ConfigError(
                f"--load {args.load!r:.{_SHOWN}}: it applies with --departures only",
                hint="--departures exponential, or trace; without, --arrival-ratio says how many pods arrive",
            )
        if args.patience is not None:
            raise ConfigError(
                f"--patience {args.patience!r:.{_SHOWN}}: it applies with --departures only",
                hint="without departures no pod waits",
            )
        return None
    if args.arrival_ratio is not None:
        raise ConfigError(
            f"--arrival-ratio {args.arrival_ratio!r:.{_SHOWN}}: it does not apply with --departures",
            hint="--load says how much of the GPUs pods ask for at a time",
        )
    return Departures(
        durations=Durations(args.departures),
        load=_number("--load", args.load, _LOAD, _MOST_LOAD),
        patience=0.0 if args.patience is None else _number("--patience", args.patience, "", _MOST_PATIENCE),
    )


def _prior(args: argparse.Namespace) -> Prior:
    if args.prior_from is None:
        return Prior(args.prior or Prior.WORKLOAD)
    if args.prior is not None:
        raise ConfigError(
            f"--prior {args.prior}: it does not apply with --prior-from",
            hint="--prior-from expects the pods of another file, and learns; --prior knows those of --pods, or nothing",
        )
    return Prior.OTHER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lading-central simulate",
        description="Replays a recorded cluster and its pods through the code that answers kube-scheduler: pods arrive in "
        "random order and are placed one by one. Says how much of the GPUs each policy allocates; with --departures, where "
        "pods wait, run and end, also for how long pods wait.",
        epilog=f"{', '.join(Baseline)} are baselines to compare with; only the others can be a cluster's policy.",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV: sn,cpu_milli,memory_mib,gpu,model; or .json: nodes by the NodeDevices that they report (docs/simulate.md)",
    )
    parser.add_argument("--every", type=_whole, default=1, metavar="N", help="take every N-th node of the list [1]")
    parser.add_argument(
        "--pods",
        type=Path,
        required=True,
        metavar="CSV",
        help="cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,rdma][,rdma_policy][,topology][,priority]",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(POLICIES)}; bestfit is best-fit; several with commas, on the same arrivals [fragmentation]",
    )
    parser.add_argument(
        "--arrival-ratio", metavar="R", help=f"pods arrive until they have asked for R times the GPUs [{_RATIO}]"
    )
    parser.add_argument(
        "--departures",
        choices=[durations.value for durations in Durations],
        help="pods end: after random durations, or after those of the trace (columns creation_time,deletion_time"
        "[,scheduled_time] of --pods)",
    )
    parser.add_argument(
        "--load", metavar="L", help=f"with --departures: pods arrive so that they would hold L times the GPUs [{_LOAD}]"
    )
    parser.add_argument(
        "--patience",
        metavar="U",
        help="with --departures: units until room is kept together for a pod that waits for several GPUs [never]",
    )
    parser.add_argument(
        "--durations-from",
        type=Path,
        metavar="CSV",
        help="with --departures trace: another file of pods, which has their times by name",
    )
    parser.add_argument(
        "--gangs",
        metavar="RULES",
        help="with --departures: pods with several GPUs are joined to gangs of 2, 4 and 8, which start by these rules: "
        f"{', '.join(Rules)}; several with commas, with the same jobs",
    )
    parser.add_argument("--seed", type=_whole, default=42, metavar="N", help="of the order of arrivals; the first of them [42]")
    parser.add_argument("--seeds", type=_whole, default=1, metavar="N", help="how many, one after the other [1]")
    parser.add_argument(
        "--prior",
        choices=[Prior.WORKLOAD.value, Prior.ONLINE.value],
        help="what fragmentation knows: how often each kind of pod comes and whether pods end, or only what happened so far "
        "[workload]",
    )
    parser.add_argument(
        "--prior-from",
        type=Path,
        metavar="CSV",
        help="fragmentation expects the pods of this file at first, as central with a workload file, and learns",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="write curves as SVG: of allocation and fragments; with --departures, of allocation and queue over time",
    )
    parser.add_argument("--jobs", type=_whole, metavar="N", help="processes [as many as CPUs]")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


def _whole(text: str) -> int:
    """Parse a whole number; for an invalid one, argparse names the flag and the text."""
    if not _WHOLE.fullmatch(text):  # int() would read 1_0 as 10
        raise argparse.ArgumentTypeError(f"a whole number is needed, and this is {text!r:.{_SHOWN}}")
    return int(text)


def _number(flag: str, given: str | None, default: str, most: float) -> float:
    text = default if given is None else given
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < number <= most:
        raise ConfigError(f"{flag} {text!r:.{_SHOWN}}: a number above 0 and up to {most:g} is needed")
    return number


def _policies(given: Sequence[str]) -> list[AnyPolicy]:
    by_name = POLICIES | _ALIASES
    names = [name.strip() for text in given for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise ConfigError(f"--policy {name!r:.{_SHOWN}}: there is no such policy", hint=f"one of: {', '.join(POLICIES)}")
    return list(dict.fromkeys(by_name[name] for name in names))
