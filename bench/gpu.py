"""Measure how programs share the card of this machine, by Lading's tokens and by other ways, in one run: `make bench-gpu`.

    python -m bench.gpu [--pretend] [--seconds N] [--measure S]

The ways: the driver's own time slices, MPS where the machine has NVIDIA's control daemon and lets it start, HAMi-core where
LADING_HAMI names its libvgpu.so, and Lading's isolation tokens. The workloads are in bench/gpu_loads.py: kernels of known
lengths, so that the work that the card does for each program is counted. Each is first measured alone, without a library.

The results are in bench/out/gpu.json: card, driver and date; `alone`; for each way and case what each program got (`part` of
the card's time, its largest part in any second, the times of batches); what calls cost, in ns; and what was left out, with the
reason. Those of a simulated node (--pretend) are in gpu-pretended.json, and show only that the bench works.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.figures import write_results
from bench.gpu_loads import ALONE, CASES, TRAINING, Made
from bench.gpu_ways import Way, cost_ns, measure, open_way
from bench.isolation_real import Real
from lading.errors import LadingError, die
from tests.gpu.machine import prepare
from tests.shares.card import MachineCard

OUT: Final = Path("bench/out/gpu.json")
PRETENDED: Final = OUT.with_stem("gpu-pretended")
WAYS: Final = ("slices", "tokens", "mps", "hami")
SECONDS: Final = 225.0  # no measurement begins later, because `make bench-gpu` may take four minutes
MEASURED_S: Final = 3.0
COSTS: Final[Mapping[str, Sequence[str]]] = {
    "launch": ("launches", "100000", "1"),
    "malloc_free": ("allocations", "5000"),
    "malloc_async_free_async": ("allocations", "50000", "async"),
}
T = TypeVar("T")
Cases = Mapping[str, Mapping[str, Made]]  # the inner names are those of loads
Single = Mapping[str, Made]  # each load alone


class Bench:
    """Measure, and keep what was measured and what was left out."""

    def __init__(self, card: MachineCard, folder: Path, *, until: float, measured_s: float) -> None:
        self._card = card
        self._folder = folder
        self._real = Real(folder)
        self._until = until
        self._measured_s = measured_s
        self.alone: dict[str, Made] = {}
        self.ways: dict[str, dict[str, dict[str, Made]]] = {}
        self.costs: dict[str, dict[str, float]] = {}
        self.server_part: dict[str, float] = {}
        self.left_out: dict[str, str] = {}

    def run(self) -> None:
        with open_way("slices", self._real, self._card, self._folder) as way:
            for load in ALONE:
                if measured := self._try(f"alone, {load.name}", partial(measure, way, [load], self._measured_s)):
                    self.alone |= measured.made
        for name in WAYS:
            try:
                with open_way(name, self._real, self._card, self._folder) as way:
                    self._measure_way(name, way)
            except LadingError as e:
                self.left_out[name] = str(e)

    def _measure_way(self, name: str, way: Way) -> None:
        for what, words in COSTS.items():
            if cost := self._try(f"{name}, {what}", partial(cost_ns, way, TRAINING, *words)):
                self.costs.setdefault(name, {})[what] = cost
        for case, loads in CASES.items():
            if measured := self._try(f"{name}, {case}", partial(measure, way, loads, self._measured_s)):
                self.ways.setdefault(name, {})[case] = measured.made
                if measured.server_part:
                    self.server_part[case] = measured.server_part

    def _try(self, what: str, measure: Callable[[], T]) -> T | None:
        """Return what it measures; None if there is no time, or it fails."""
        if time.monotonic() > self._until:
            self.left_out[what] = "the time is over; more is given by --seconds"
            return None
        print(what, file=sys.stderr, flush=True)
        try:
            return measure()
        except LadingError as e:
            self.left_out[what] = str(e)
            return None

    def results(self) -> dict[str, Any]:
        return {
            "card": self._card.name,
            "driver": self._card.version,
            "memory_mib": self._card.memory_mib,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "measured_s": self._measured_s,
            "alone": {name: made.rounded() for name, made in self.alone.items()},
            "ways": {
                way: {case: {load: made.rounded() for load, made in loads.items()} for case, loads in cases.items()}
                for way, cases in self.ways.items()
            },
            "cost_ns": self.costs,
            "server_part_of_a_core": {case: round(part, 4) for case, part in self.server_part.items()},
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    value: Callable[[Cases, Single], float]
    goal: str = ""


def _ratio(case: str, load: str, alone: str = "training") -> Callable[[Cases, Single], float]:
    return lambda cases, single: 100 * cases[case][load].part / single[alone].part


def _sum(case: str, alone: Mapping[str, str]) -> Callable[[Cases, Single], float]:
    return lambda cases, single: sum(100 * cases[case][load].part / single[of].part for load, of in alone.items())


def _part(case: str, load: str) -> Callable[[Cases, Single], float]:
    return lambda cases, _: 100 * cases[case][load].part / sum(made.part for made in cases[case].values())


ROWS: Final = (
    Row(what="answer beside a training: p50, ms", value=lambda cases, _: cases["answer"]["answer"].p50_ms),
    Row(
        what="answer beside a training: p99, ms",
        value=lambda cases, _: cases["answer"]["answer"].p99_ms,
        goal="1.2 x slices; better 1.1 x alone",
    ),
    Row(what="the training meanwhile, % of alone", value=_ratio("answer", "training"), goal=">= 95"),
    Row(
        what="tiny + training, sum of % of alone",
        value=_sum("tiny", {"tiny": "tiny", "training": "training"}),
        goal=">= slices",
    ),
    Row(what="70/30: part of the 70, %", value=_part("70_30", "a"), goal="68 to 72"),
    Row(what="70/30: sum, % of alone", value=_sum("70_30", {"a": "training", "b": "training"}), goal=">= 98"),
    Row(what="50/30/20: part of the 50, %", value=_part("50_30_20", "a"), goal="48 to 52"),
    Row(what="50/30/20: part of the 20, %", value=_part("50_30_20", "c"), goal="18 to 22"),
    Row(what="50/30/20: sum, % of alone", value=_sum("50_30_20", dict.fromkeys("abc", "training")), goal=">= 98"),
    Row(what="long beside short: the long, % of alone", value=_ratio("long", "long", "long"), goal="48 to 52"),
    Row(what="long beside short: the short, % of alone", value=_ratio("long", "training"), goal="48 to 52"),
    Row(what="bursts (30): most in a second, %", value=lambda cases, _: 100 * cases["bursts"]["bursts"].most, goal="<= 30"),
    Row(what="flood (30): most in a second, %", value=lambda cases, _: 100 * cases["flood"]["flood"].most, goal="<= 30"),
    Row(
        what="beside the flood: a batch's p99, ms",
        value=lambda cases, _: cases["flood"]["training"].p99_ms,
        goal="3 x alone + 20",
    ),
    Row(what="limit 30, alone, %", value=_ratio("limit", "training"), goal="29 to 31"),
    Row(
        what="16: an answer's p99, the worst, ms",
        value=lambda cases, _: max(made.p99_ms for name, made in cases["sixteen"].items() if name != "training"),
    ),
)
COST_GOALS: Final = {"launch": "1.05 x", "malloc_free": "1.1 x", "malloc_async_free_async": "1.5 x"}


def render(bench: Bench) -> Iterator[str]:
    """Yield the lines of a table: a row for each goal, a column for each way."""
    yield f"{'':44}" + "".join(f"{way:>10}" for way in WAYS) + "  goal of tokens"
    for row in ROWS:
        yield f"{row.what:44}" + "".join(f"{_cell(row, bench, way):>10}" for way in WAYS) + f"  {row.goal}"
    for what, goal in COST_GOALS.items():
        cells = (bench.costs.get(way, {}).get(what) for way in WAYS)
        yield (
            f"{what + ', ns':44}"
            + "".join(f"{'-' if cell is None else f'{cell:.0f}':>10}" for cell in cells)
            + f"  {goal} slices"
        )
    for case, part in bench.server_part.items():
        yield f"{'the server, % of a core: ' + case:44}{'':10}{100 * part:10.1f}" + ("  < 2" if case == "sixteen" else "")
    for name, made in bench.alone.items():
        times = f"a batch p50 {made.p50_ms:.2f}, p99 {made.p99_ms:.2f} ms"
        yield f"alone, {name}: {100 * made.part:.1f} % of the card's time, {times}"
    for what, reason in bench.left_out.items():
        yield f"left out: {what}: {reason}"


def _cell(row: Row, bench: Bench, way: str) -> str:
    try:
        return f"{row.value(bench.ways[way], bench.alone):.2f}"
    except KeyError:
        return "-"  # the way or the case was left out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.gpu", description="Measure how programs share the card of this machine.")
    parser.add_argument("--pretend", action="store_true", help="take a simulated node for the machine")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no measurement after so many seconds")
    parser.add_argument("--measure", type=float, default=MEASURED_S, help="seconds of each measurement")
    asked = parser.parse_args(argv)
    until = time.monotonic() + asked.seconds
    try:
        with prepare(pretend=asked.pretend) as card, tempfile.TemporaryDirectory(prefix="lading-bench-") as folder:
            bench = Bench(card, Path(folder), until=until, measured_s=asked.measure)
            bench.run()
    except LadingError as e:
        die(e)
    out = PRETENDED if asked.pretend else OUT
    write_results(out, bench.results())
    print(f"{card}{' (pretended)' if asked.pretend else ''}", *render(bench), sep="\n")


if __name__ == "__main__":
    main()
