"""Compare the shipped weights of the policy fragmentation with other weights.

    python -m bench.weights FOLDER

FOLDER, or LADING_TRACES in the environment, is as for bench.placement. Every workload is replayed without departures, with
the weights of central/rank/fragmentation.py for a cluster that is filled, with one of them scaled, or with another step of the
score. All variants get the same arrivals. Seeds of bench.placement are refused, so that the weights are not fitted to the
figures in the docs. A difference is the mean over seeds of the allocated GPUs at the end of arrivals, in percentage points,
with the standard error of that mean.

The weights are constants where scores are made, and are exchanged in the processes of this command only.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from bench.figures import write_results
from bench.placement import RATIO, SEEDS, find_workloads
from bench.placement_table import signed
from central.rank import fragmentation
from central.rank.forecast import STEPS
from central.rank.workload import MASS
from central.rank.worth import Weights
from central.request.model import Policy
from lading.errors import ConfigError, LadingError, die
from simulate.replay import replay
from simulate.report import difference_of
from simulate.runs import run_all
from simulate.trace import Trace, read_pods

OUT: Final = Path("bench/out/weights.json")
SHIPPED: Final = "shipped"
ALL: Final = "all"
_WEIGHTS: Final[Weights] = fragmentation.FILLING
_UNIT: Final[int] = fragmentation._UNIT
_STEP_MILLI: Final[int] = fragmentation.STEP_MILLI
_HALF, _TWICE = Fraction(1, 2), Fraction(2)
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Describe a variant of the weights: factors for the shipped weights, and the step of the score in thousandths, None as
    shipped."""

    cut: Fraction = Fraction(1)
    usable: Fraction = Fraction(1)
    fed: Fraction = Fraction(1)
    step_milli: int | None = None

    def weights(self) -> Weights:
        """Return the weights: whole numbers, because the shipped ones are even."""
        factors = (self.cut, self.usable, self.fed, self.fed, Fraction(1))
        return Weights(*(int(weight * factor) for weight, factor in zip(_WEIGHTS, factors, strict=True)))


VARIANTS: Final[Mapping[str, Variant]] = {
    SHIPPED: Variant(),
    "cut x 1/2": Variant(cut=_HALF),
    "cut x 2": Variant(cut=_TWICE),
    "usable x 0": Variant(usable=Fraction(0)),
    "usable x 2": Variant(usable=_TWICE),
    "fed x 1/2": Variant(fed=_HALF),
    "fed x 2": Variant(fed=_TWICE),
    "step 15": Variant(step_milli=15),
    "step 50": Variant(step_milli=50),
}


class Task(NamedTuple):
    """Represent one replay of the workload under a variant."""

    variant: str
    seed: int
    ratio: float

    def expect_pods(self, trace: Trace) -> float:
        return trace.pods_for(self.ratio)

    def run(self, trace: Trace, tell: Callable[[int], None]) -> float:
        with played_with(VARIANTS[self.variant]):
            return replay(trace, Policy.FRAGMENTATION, self.seed, ratio=self.ratio, tell=tell).at_end


# Workload, variant and seed → percent of the GPUs that are allocated at the end of arrivals.
Allocated = Mapping[tuple[str, str, int], float]


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    try:
        if args.folder is None:
            raise ConfigError("there is no folder with traces", hint="python -m bench.weights FOLDER, or set LADING_TRACES")
        results = run(
            Path(args.folder),
            range(args.first_seed, args.first_seed + args.seeds),
            ratio=args.ratio,
            only=args.only.split(",") if args.only else [],
            jobs=args.jobs or os.cpu_count() or 1,
        )
        write_results(args.output, results)
    except LadingError as e:
        die(e)
    print(render(results))


def run(folder: Path, seeds: Sequence[int], *, ratio: float, only: Sequence[str], jobs: int) -> dict[str, Any]:
    """Replay the workloads. Raises ConfigError."""
    if not seeds or seeds[0] < 0:
        raise ConfigError(f"--first-seed and --seeds: {len(seeds)} seeds: one or more, from 0 on, are needed")
    reported = sorted(set(seeds) & set(SEEDS))
    if reported:
        raise ConfigError(
            f"cannot choose weights on seed {reported[0]}: figures in the docs are of seeds {SEEDS[0]} to {SEEDS[-1]}",
            hint="with other --first-seed and --seeds",
        )
    nodes, files = find_workloads(folder, only)
    tasks = [Task(variant, seed, ratio) for variant in VARIANTS for seed in seeds]
    allocated: dict[tuple[str, str, int], float] = {}
    for name, path in files.items():
        result = run_all(Trace(nodes=nodes, pods=read_pods(path)), tasks, jobs=jobs, what=f"weights, {name}")
        allocated |= {(name, task.variant, task.seed): one for task, one in zip(tasks, result, strict=True)}
    return summarize(allocated, list(files), seeds, ratio)


def summarize(allocated: Allocated, workloads: Sequence[str], seeds: Sequence[int], ratio: float) -> dict[str, Any]:
    """Summarize. `all`: for each seed, the mean of the workloads."""
    by_seed: dict[str, dict[str, list[float]]] = {
        name: {
            variant: [allocated[name, variant, seed] - allocated[name, SHIPPED, seed] for seed in seeds]
            for variant in VARIANTS
            if variant != SHIPPED
        }
        for name in workloads
    }
    by_seed[ALL] = {
        variant: [fmean(column) for column in zip(*(by_seed[name][variant] for name in workloads), strict=True)]
        for variant in by_seed[workloads[0]]
    }
    return {
        "seeds": list(seeds),
        "arrival_ratio": ratio,
        "variants": {name: _described(variant) for name, variant in VARIANTS.items()},
        "allocation": {name: fmean(allocated[name, SHIPPED, seed] for seed in seeds) for name in workloads},
        "to_shipped": {
            name: {variant: difference_of(of)._asdict() for variant, of in part.items()} for name, part in by_seed.items()
        },
    }


def render(results: Mapping[str, Any]) -> str:
    seeds, names = results["seeds"], list(results["to_shipped"][ALL])
    lines = [
        f"percent of the GPUs allocated when {_PERCENT * results['arrival_ratio']:g} % were asked for, and points more with "
        f"other weights; seeds {seeds[0]} to {seeds[-1]}",
        f"{'':16}{SHIPPED:>9}" + "".join(f"{name:>14}" for name in names),
    ]
    for workload, part in results["to_shipped"].items():
        shipped = results["allocation"].get(workload, fmean(results["allocation"].values()))
        lines.append(f"{workload:16}{shipped:9.2f}" + "".join(f"{signed(part[name]):>14}" for name in names))
    return "\n".join(lines)


@contextmanager
def played_with(variant: Variant) -> Iterator[None]:
    """Score by these weights in this process, within the block."""
    _exchange(variant.weights(), variant.step_milli or _STEP_MILLI)
    try:
        yield
    finally:
        _exchange(_WEIGHTS, _STEP_MILLI)


def _exchange(weights: Weights, step_milli: int) -> None:
    for name, value in (("FILLING", weights), ("STEP_MILLI", step_milli)):
        setattr(fragmentation, name, value)


def _described(variant: Variant) -> dict[str, Any]:
    """Return the weights in milli of worth for one milli of each term."""
    by_name = {name: value * STEPS * MASS / _UNIT for name, value in variant.weights()._asdict().items()}
    return {**by_name, "step_milli": variant.step_milli or _STEP_MILLI}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.weights", description="How much other weights would give out.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("LADING_TRACES"), help="[$LADING_TRACES]")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many [3]")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N", help="[1]")
    parser.add_argument("--only", metavar="NAMES", help="workloads, with commas between")
    parser.add_argument("--ratio", type=float, default=RATIO, metavar="R", help=f"of what is asked for to all GPUs [{RATIO}]")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes [as many as CPUs]")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    return parser


if __name__ == "__main__":
    main()
