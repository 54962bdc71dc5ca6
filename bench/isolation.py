"""`python -m bench.isolation`: measure how truly shares are kept, and what that costs; write JSON, print a table.

In virtual time, for each case and each way of sharing (Lading's `fair`, the `window` of Gemini, a static `partition`, a model
of a `reactive` limiter):

* `share_error.<case>.<way>`: the most by which a container has less than its request, or than it wants if that is less;
* `held.<case>.<way>`: the part of the card's time that was used;
* `wait_max_ms.<case>.<way>`: the longest time from wanting to run something to running it.

By real processes on the fake card, whose kernels run one after another (simnode/fake_cuda.c):

* `share_error.real`, `held.real`: three busy containers with requests of .5, .3 and .2;
* `overhead_alone`: what a container that is alone loses of the card because of the library, kernels of 1 ms;
* `launch_ns`: one launch without and with the library, which has its turn;
* `token_p50_ms`, `token_p99_ms`: a turn that no other container wants, from asking for it to having it.

Needs a C compiler. A full run takes about three minutes. On a machine that has other work the real part measures that, too: it
prints the load.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.figures import percentile
from bench.other_cards import partition, react
from bench.virtual_card import Work, simulate
from lading.compiling import find_compiler
from lading.errors import LadingError, die
from shares.library.build import CUDA, build
from shares.policy.fair import Fair
from shares.policy.model import MS
from shares.policy.window import Window
from shares.wire import Kind
from simnode.cuda import compile_fake_cuda
from tests.fakes.share_rig import Client
from tests.shares.site import SOCKET, Container, Site

OUT: Final = Path("bench/out/isolation.json")
GPU_WORK: Final = Path(__file__).parents[1] / "simnode" / "gpu_work.c"
REQUESTS: Final = {"a": 0.5, "b": 0.3, "c": 0.2}
WAYS: Final[dict[str, Callable[[Sequence[Work], float], None]]] = {
    "fair": lambda works, seconds: simulate(works, Fair(), seconds=seconds),
    "window": lambda works, seconds: simulate(works, Window(), seconds=seconds),
    "partition": lambda works, seconds: partition(works, seconds=seconds),
    "reactive": lambda works, seconds: react(works, seconds=seconds),
}
Results = dict[str, "float | Results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Containers, and the part of the card that each is promised from a second on."""

    works: tuple[Work, ...]
    promised: tuple[float, ...]
    since_s: int = 5  # the beginning is left out
    seconds: int = 60


def _busy(*kernels_ms: tuple[float, ...]) -> tuple[Work, ...]:
    each = kernels_ms * 3 if len(kernels_ms) == 1 else kernels_ms
    return tuple(
        Work(name=name, request=part, kernels_ms=kernels) for (name, part), kernels in zip(REQUESTS.items(), each, strict=True)
    )


_PARTS: Final = tuple(REQUESTS.values())
CASES: Final = {
    "busy": Case(works=_busy((5.0,)), promised=_PARTS),
    "kernels_of_1_20_100_ms": Case(works=_busy((1.0,), (20.0,), (100.0,)), promised=_PARTS),
    "mixed_kernels": Case(works=_busy((1.0, 20.0, 200.0)), promised=_PARTS),
    "one_idle": Case(works=(_busy((5.0,))[0], _busy((5.0,))[2]), promised=(0.5, 0.2)),
    "one_comes_late": Case(
        works=(Work(name="a", request=0.5), Work(name="b", request=0.5, begins_ms=30_000)), promised=(0.5, 0.5), since_s=30
    ),
    "inference_beside_training": Case(
        works=(Work(name="a", request=0.2, burst_ms=5, every_ms=50), Work(name="b", request=0.8)), promised=(0.1, 0.8)
    ),
    "eight": Case(works=tuple(Work(name=f"c{i}", request=0.125) for i in range(8)), promised=(0.125,) * 8),
}


def model(case: Case, way: Callable[[Sequence[Work], float], None], *, seconds: int) -> tuple[float, float, float]:
    """Return the share error, what was used of the card, and the longest wait in milliseconds."""
    works = [replace(work, ran=[], waits_ns=[]) for work in case.works]
    way(works, seconds)
    parts = [work.share_of(case.since_s * 1000 * MS, seconds * 1000 * MS) for work in works]
    if way is WAYS["partition"]:  # each had its own card, as large as its request
        parts = [part * work.request for part, work in zip(parts, works, strict=True)]
    error = max(0.0, *(promised - part for part, promised in zip(parts, case.promised, strict=True)))
    # Of a partition none waits for another: its kernels are slow instead.
    waited = 0.0 if way is WAYS["partition"] else max((wait for work in works for wait in work.waits_ns), default=0) / MS
    return error, sum(parts), waited


def measure_models() -> Results:
    errors: Results = {}
    held: Results = {}
    waits: Results = {}
    for name, case in CASES.items():
        said = {way: model(case, run, seconds=case.seconds) for way, run in WAYS.items()}
        errors[name] = {way: round(one[0], 4) for way, one in said.items()}
        held[name] = {way: round(one[1], 4) for way, one in said.items()}
        waits[name] = {way: round(one[2], 1) for way, one in said.items()}
    return {"share_error": errors, "held": held, "wait_max_ms": waits}


class Real:
    """Programs on one fake card, each with the library or without it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.real = compile_fake_cuda(folder / "real")
        self.library = folder / "shown" / CUDA
        build(self.library, find_compiler(), real=self.real, socket=SOCKET)
        self._work = folder / "gpu-work"
        subprocess.run([*find_compiler(), "-O2", str(GPU_WORK), "-o", str(self._work), "-ldl"], check=True)

    def start(self, site: Site, container: Container, *arguments: str, library: bool = True) -> "subprocess.Popen[str]":
        """Start gpu-work in a container. It begins once the server can see whose it is."""
        env = {**site.environment(), **({} if library else {"LD_LIBRARY_PATH": str(self.real.parent)})}
        waiting = ["/bin/sh", "-c", 'read _; exec "$0" "$@"', str(self._work), *arguments]
        program = subprocess.Popen(
            waiting, cwd=container.folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        site.admit(program.pid)
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()
        return program

    def site(self) -> Site:
        return Site(Path(tempfile.mkdtemp(dir=self._folder)), self.library)


def said_by(program: "subprocess.Popen[str]") -> list[str]:
    words = program.communicate()[0].split()
    if program.returncode:
        raise LadingError(f"gpu-work ended with status {program.returncode}")
    return words


def measure_shares(real: Real, milliseconds: int) -> tuple[float, float]:
    """Return the share error and the part of the card's time that was held, of three busy containers."""
    with real.site() as site, ExitStack() as ends:
        programs = []
        for name, part in REQUESTS.items():
            container = site.container(name, request=round(100 * part))
            programs.append(ends.enter_context(real.start(site, container, "run", str(milliseconds), "5000")))
        while not all(held > 0 for held in site.held().values()):
            time.sleep(0.01)
        before, began = site.held(), time.monotonic()
        time.sleep(milliseconds / 1000 * 0.8)
        after, passed = site.held(), time.monotonic() - began
        for program in programs:
            said_by(program)
    held = {name: (after[name] - before[name]) / passed for name in REQUESTS}
    return max(abs(held[name] - part) for name, part in REQUESTS.items()), sum(held.values())


def measure_alone(real: Real, milliseconds: int, rounds: int) -> float:
    """Return what one container that is alone loses of the card because of the library."""
    busy: dict[bool, list[float]] = {True: [], False: []}
    with real.site() as site:
        container = site.container("a")
        for _ in range(rounds):
            for library, found in busy.items():
                used, _, wall, _ = said_by(real.start(site, container, "run", str(milliseconds), "1000", library=library))
                found.append(float(used) / float(wall))
    return 1 - median(busy[True]) / median(busy[False])


def measure_launches(real: Real, count: int, rounds: int) -> dict[str, float]:
    took: dict[str, list[float]] = {"without": [], "with": []}
    with real.site() as site:
        container = site.container("a")
        for _ in range(rounds):
            for which, found in took.items():
                (one, _) = said_by(real.start(site, container, "launches", str(count), library=which == "with"))
                found.append(float(one))
    return {which: median(found) for which, found in took.items()}


def measure_tokens(real: Real, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time to have a turn, in milliseconds."""
    took = []
    with real.site() as site:
        container = site.container("a")
        site.admit(os.getpid())
        with Client(container.folder / SOCKET) as client:
            client.greet()
            for _ in range(count):
                began = time.perf_counter()
                client.want()
                client.receive()
                took.append((time.perf_counter() - began) * 1e3)
                client.send(Kind.RELEASE)
                client.settle()
    return percentile(took, 0.5), percentile(took, 0.99)


def measure_real(results: Results, *, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="lading-bench-") as folder:
        real = Real(Path(folder))
        error, held = measure_shares(real, 3_000 if quick else 20_000)
        for name, one in (("share_error", error), ("held", held)):
            part = results.setdefault(name, {})
            assert isinstance(part, dict)
            part["real"] = round(one, 4)
        rounds = 1 if quick else 5
        results["overhead_alone"] = round(measure_alone(real, 1_000 if quick else 3_000, rounds), 4)
        results["launch_ns"] = {**measure_launches(real, 100_000 if quick else 1_000_000, rounds)}
        middle, late = measure_tokens(real, 200 if quick else 5_000)
        results |= {"token_p50_ms": round(middle, 3), "token_p99_ms": round(late, 3)}


def render(results: Results) -> str:
    lines = [f"{'':44}" + "".join(f"{way:>12}" for way in WAYS)]
    for figure in ("share_error", "held", "wait_max_ms"):
        cases = results.get(figure, {})
        assert isinstance(cases, dict)
        for case, ways in cases.items():
            if isinstance(ways, dict):
                lines.append(f"{figure + '.' + case:44}" + "".join(f"{ways[way]!s:>12}" for way in WAYS))
            else:
                lines.append(f"{figure + '.' + case:44}{ways!s:>12}")
    single = [name for name in results if name not in {"share_error", "held", "wait_max_ms"}]
    lines += [f"{name:44}{results[name]!s:>12}" for name in single]
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
            results |= measure_models()
        if args.only != "model":
            load = os.getloadavg()[0]
            measure_real(results, quick=args.quick)
            print(f"{os.cpu_count()} CPUs, load {load:.1f} before and {os.getloadavg()[0]:.1f} after", file=sys.stderr)
    except LadingError as e:
        die(e)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
