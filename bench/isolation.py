"""Measure how exactly isolations enforce shares, and the cost of that. Write JSON and print a table.

    python -m bench.isolation

In virtual time, for each case and each way of sharing (Lading's `fair`, the `window` of Gemini, a static `partition`, a model
of a `reactive` limiter):

* `share_error.<case>.<way>`: the maximum by which a container got less than its request, or than its use if that is less;
* `second_error.<case>.<way>`: the same in any one second, for cases in which all containers are always busy;
* `limit_error.<case>.<way>`: the maximum by which a container that is always busy got more or less than its limit;
* `held.<case>.<way>`: the part of the card's time that was used;
* `wait_max_ms.<case>.<way>`: the longest time from wanting to run something to running it;
* `wait_back_ms.<case>.<way>`: the same for a container that was inactive, at its return.

By real processes on the fake card, which contexts share by slices as a real one (simnode/fake_card.c). What counts is the work
that the card has done for a program:

* `work.<case>, <load>.<way>`, `batch_p99_ms.<case>, <load>.<way>`: the part of the card's time that it worked for a load, and
  the time for a batch of kernels (bench/gpu_loads.py); `alone`, by the driver's own `slices`, and by Lading's `tokens`;
* `server_cpu.<case>`: the part of a CPU core that the share server used meanwhile;
* `share_error.real`, `work.real`, `wait_max_ms.real`: three busy containers with requests of .5, .3 and .2; the same of eight
  equal ones, and of two of which one never synchronises;
* `overhead_alone`: the part of the card that a single container loses because of the library, with kernels of 1 ms;
* `launch_ns`: one launch without the library, and one with the library during a turn;
* `token_p50_ms`, `token_p99_ms`: the time from the end of one container's turn to the begin of the next turn, among 16
  containers that always want the card;
* `failures`: the loss of other containers when a program or the server is killed or stopped.

Needs a C compiler. A full run takes about eight minutes. Other load on the machine changes the figures of real processes, so
the load is printed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from bench.figures import write_results
from bench.isolation_loads import COLUMNS, measure_loads
from bench.isolation_real import Real, Results, measure
from bench.other_cards import partition, react
from bench.virtual_card import Work, simulate
from lading.errors import LadingError, die
from shares.policy.fair import Fair
from shares.policy.model import MS
from shares.policy.window import Window

OUT: Final = Path("bench/out/isolation.json")
REQUESTS: Final = {"a": 0.5, "b": 0.3, "c": 0.2}
WAYS: Final[dict[str, Callable[[Sequence[Work], float], None]]] = {
    "fair": lambda works, seconds: simulate(works, Fair(), seconds=seconds),
    "window": lambda works, seconds: simulate(works, Window(), seconds=seconds),
    "partition": lambda works, seconds: partition(works, seconds=seconds),
    "reactive": lambda works, seconds: react(works, seconds=seconds),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Describe a case: containers, and the part of the card that each is guaranteed after `since_s` seconds."""

    works: tuple[Work, ...]
    promised: tuple[float, ...]
    since_s: int = 5  # seconds at the beginning that do not count
    seconds: int = 60
    steady: bool = False  # every container must get its guaranteed part in each second
    limited: bool = False  # the guaranteed part is also the limit
    back: str = ""  # name of the container that was inactive


class Outcome(NamedTuple):
    share_error: float
    held: float
    wait_max_ms: float
    second_error: float | None
    limit_error: float | None
    wait_back_ms: float | None


def _busy(*kernels_ms: tuple[float, ...]) -> tuple[Work, ...]:
    each = kernels_ms * 3 if len(kernels_ms) == 1 else kernels_ms
    return tuple(
        Work(name=name, request=part, kernels_ms=kernels) for (name, part), kernels in zip(REQUESTS.items(), each, strict=True)
    )


_PARTS: Final = tuple(REQUESTS.values())
CASES: Final = {
    "busy": Case(works=_busy((5.0,)), promised=_PARTS, steady=True),
    "kernels_of_1_20_100_ms": Case(works=_busy((1.0,), (20.0,), (100.0,)), promised=_PARTS),
    "mixed_kernels": Case(works=_busy((1.0, 20.0, 200.0)), promised=_PARTS),
    "one_idle": Case(works=(_busy((5.0,))[0], _busy((5.0,))[2]), promised=(0.5, 0.2)),
    "one_comes_late": Case(
        works=(Work(name="a", request=0.5), Work(name="b", request=0.5, begins_ms=30_000)), promised=(0.5, 0.5), since_s=30
    ),
    "one_comes_back": Case(
        works=(*_busy((5.0,))[:2], Work(name="c", request=0.2, pauses_ms=(10_000, 30_000))),
        promised=_PARTS,
        since_s=30,
        back="c",
    ),
    "limits": Case(
        works=(Work(name="a", request=0.3, limit=0.3), Work(name="b", request=0.2, limit=0.2)),
        promised=(0.3, 0.2),
        limited=True,
    ),
    "limit_alone": Case(works=(Work(name="a", request=0.3, limit=0.3),), promised=(0.3,), limited=True),
    "inference_beside_training": Case(
        works=(Work(name="a", request=0.2, burst_ms=5, every_ms=50), Work(name="b", request=0.8)), promised=(0.1, 0.8)
    ),
    "eight": Case(works=tuple(Work(name=f"c{i}", request=0.125) for i in range(8)), promised=(0.125,) * 8),
}


def model(case: Case, way: Callable[[Sequence[Work], float], None], *, seconds: int) -> Outcome:
    """Run the case in virtual time."""
    works = [replace(work, ran=[], waits_ns=[]) for work in case.works]
    way(works, seconds)
    since_ns, until_ns = case.since_s * 1000 * MS, seconds * 1000 * MS
    parts = [work.share_of(since_ns, until_ns) for work in works]
    alone = way is WAYS["partition"]  # each container had its own card, as large as its request
    if alone:
        parts = [part * work.request for part, work in zip(parts, works, strict=True)]
    apart = [promised - part for part, promised in zip(parts, case.promised, strict=True)]
    # In a partition no container waits for another: its kernels are slow instead.
    waited = 0.0 if alone else max((wait for work in works for wait in work.waits_ns), default=0) / MS
    second = limit = back = None
    if case.steady and not alone:
        second = max(
            work.error_in_any_second(promised, since_ns, until_ns) for work, promised in zip(works, case.promised, strict=True)
        )
    if case.limited:
        limit = max(map(abs, apart))
    if case.back and not alone:
        (its,) = (work for work in works if work.name == case.back)
        assert its.pauses_ms
        back_ns = int(its.pauses_ms[1] * MS)
        back = (next(began for began, _ in its.ran if began >= back_ns) - back_ns) / MS
    return Outcome(max(0.0, *apart), sum(parts), waited, second, limit, back)


def measure_models() -> Results:
    results: Results = {}
    for name, case in CASES.items():
        said = {way: model(case, run, seconds=case.seconds) for way, run in WAYS.items()}
        for figure in Outcome._fields:
            ways = {way: getattr(one, figure) for way, one in said.items()}
            of_figure = results.setdefault(figure, {})
            assert isinstance(of_figure, dict)
            if any(value is not None for value in ways.values()):
                of_figure[name] = {way: round(value, 4) for way, value in ways.items() if value is not None}
    return results


def measure_real(*, quick: bool) -> Results:
    with tempfile.TemporaryDirectory(prefix="lading-bench-") as folder:
        real = Real(Path(folder))
        return merge(measure_loads(real, Path(folder), seconds=1 if quick else 5), measure(real, quick=quick))


def merge(results: Results, more: Results) -> Results:
    """Return the figures of both; those of the same name are one figure of several cases."""
    merged = dict(results)
    for name, figure in more.items():
        before = merged.get(name)
        merged[name] = {**before, **figure} if isinstance(before, dict) and isinstance(figure, dict) else figure
    return merged


def render(results: Results) -> str:
    lines: list[str] = []
    header: tuple[str, ...] = ()
    for figure, cases in results.items():
        for case, value in cases.items() if isinstance(cases, dict) else [("", cases)]:
            columns = COLUMNS if isinstance(value, dict) and COLUMNS[0] in value else tuple(WAYS)
            if columns != header:
                header = columns
                lines.append(f"{'':44}" + "".join(f"{way:>12}" for way in columns))
            cells = [value.get(way, "") for way in columns] if isinstance(value, dict) else [value]
            lines.append(f"{figure + '.' * bool(case) + case:44}" + "".join(f"{cell!s:>12}" for cell in cells))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.isolation", description="How truly shares are kept, and what that costs.")
    parser.add_argument("--quick", action="store_true", help="shorter real runs: to see that it works, not to be quoted")
    parser.add_argument("--only", choices=("model", "real"), help="one part")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    results: Results = {}
    try:
        if args.only != "real":
            results = measure_models()
        if args.only != "model":
            load = os.getloadavg()[0]
            results = merge(results, measure_real(quick=args.quick))
            print(f"{os.cpu_count()} CPUs, load {load:.1f} before and {os.getloadavg()[0]:.1f} after", file=sys.stderr)
    except LadingError as e:
        die(e)
    write_results(args.output, results)
    print(render(results))


if __name__ == "__main__":
    main()
