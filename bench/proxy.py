"""Measure the proxy, NRI, a direct connection and a usual gRPC proxy. Write JSON and print a table.

    python -m bench.proxy

Needs root, containerd 1.7 and runc (`python -m simnode.install 1.7.`); everything runs in a folder of its own. A full run takes
about ten minutes, `--quick` less than one. The machine should have nothing else to do; because it often has, rounds are
interleaved, and `nice -n -15` in front helps.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.calls import measure_concurrent, measure_list, measure_version
from bench.creates import measure_creates
from bench.figures import Results, render
from bench.held import measure_stall, measure_stuck_hook
from bench.memory import measure_memory
from bench.rig import Rig
from bench.size import FULL, QUICK, Part, Size
from lading.errors import HostError, LadingError, die
from simnode import leftovers
from simnode.containerd import PrivateContainerd, find_containerd

OUT: Final = Path("bench/out/proxy.json")
NRI: Final = "1.7."  # the oldest containerd that has it
PARTS: Final[dict[str, Callable[[Rig, Size], Part]]] = {
    "version": measure_version,
    "concurrent16": measure_concurrent,
    "list_2mb": measure_list,
    "create_with_gpu_hook": measure_creates,
    "memory": measure_memory,
    "stuck_hook": measure_stuck_hook,
    "loop_stall_max_ms": measure_stall,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.proxy", description="What the proxy costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it works, not to be quoted")
    parser.add_argument("--only", metavar="NAME", choices=PARTS, help=f"one part: {', '.join(PARTS)}")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup runs
    try:
        results, notes = run([args.only] if args.only else list(PARTS), QUICK if args.quick else FULL)
    except LadingError as e:
        die(e)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results, notes))
    print(f"written to {args.output}")


def run(names: Sequence[str], size: Size) -> tuple[Results, list[str]]:
    binaries = find_containerd(NRI)
    if binaries is None:
        raise HostError(f"cannot measure: there is no containerd {NRI}*", hint=f"run: python -m simnode.install {NRI}")
    folder = Path(tempfile.mkdtemp(prefix="lading-bench-"))
    results: dict[str, float | Results] = {}
    notes = [f"containerd {binaries.version}, {os.cpu_count()} CPUs, medians over {size.rounds} interleaved rounds"]
    try:
        with PrivateContainerd(folder / "ctd", binaries) as runtime:
            rig = Rig(folder, runtime, report)
            for name in names:
                part = PARTS[name](rig, size)
                results |= part.results
                notes += part.notes
    finally:
        report("")
        leftovers.remove_tree(folder)
    return results, notes


def report(text: str) -> None:
    """Print progress, on one line of a terminal; elsewhere a line each."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
