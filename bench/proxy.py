"""Measure the proxy, NRI, a direct connection and a usual gRPC proxy. Write JSON and print a table.

    python -m bench.proxy

Needs root, containerd 1.7 and runc (`python -m simnode.install 1.7.`); everything runs in a folder of its own. A full run takes
about ten minutes, `--quick` less than one. The machine should have nothing else to do; because it often has, rounds are
interleaved, and `nice -n -15` in front helps.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.caller import Caller, run_calls
from bench.calls import VERSION, VERSION_REQUEST, measure_concurrent, measure_list, measure_version
from bench.creates import GUARDED, measure_creates
from bench.figures import Results, render, write_results
from bench.held import measure_stall, measure_stuck_hook
from bench.procfs import read_rss_mb
from bench.rig import FULL, QUICK, Part, Rig, Size
from lading.errors import HostError, LadingError, die
from simnode import leftovers
from simnode.containerd import PrivateContainerd, find_containerd

CONNECTIONS: Final = 8
_AT_A_TIME: Final = 2
_STEPS: Final = 10


def measure_memory(rig: Rig, size: Size) -> Part:
    """Measure the proxy's memory: with 8 connections, after many calls, and after many questions to the GPU hook."""
    with rig.lading() as lading, lading.client() as client:
        pid = lading.proxy.pid
        callers = [Caller(lading.cri_socket, VERSION, VERSION_REQUEST) for _ in range(CONNECTIONS)]
        pod = client.run_pod("guarded", annotations=GUARDED)
        pod.create_container("first").remove()  # memory that the first held call loads belongs to the start
        run_calls(callers, CONNECTIONS)
        start_mb = read_rss_mb(pid)
        for step in range(_STEPS):
            rig.report(f"memory: {start_mb:.1f} MB at the start, {read_rss_mb(pid):.1f} MB now, calls {step} of {_STEPS}")
            run_calls(callers, size.calls_for_memory // _STEPS, at_a_time=_AT_A_TIME)
        after_calls_mb = read_rss_mb(pid)
        for number in range(size.creates_for_memory):
            if number % (size.creates_for_memory // _STEPS) == 0:
                rig.report(f"memory: {read_rss_mb(pid):.1f} MB now, container {number} of {size.creates_for_memory}")
            pod.create_container(f"c{number}").remove()
        after_creates_mb = read_rss_mb(pid)
        for caller in callers:
            caller.close()
    figures = {"start_mb": start_mb, "after_200k_calls_mb": after_calls_mb, "after_5k_creates_mb": after_creates_mb}
    return Part({"memory": figures}, [])


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
    write_results(args.output, results)
    print(render(results, notes))


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
