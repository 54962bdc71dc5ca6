"""Measure the relay's own time by function: replay recorded conversations through it, without sockets.

    python -m bench.profile [FILE.rec.gz ...]

The recordings are byte streams as a client and a runtime sent them (format: tests/golden/cri/README.md), by default those of
the tests. Prints microseconds a call for the relay itself, with the processor's caches warm, and the share of each function.
Held calls are forwarded at once. Not in it: asyncio, system calls, and the kernel's waking of the other side, which make up the
rest of what `bench.proxy` measures.
"""

import argparse
import cProfile
import gzip
import pstats
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lading.http2 import frames
from lading.http2.frames import FrameReader
from runtimeproxy.call.calls import held_paths
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.connection import MAX_MESSAGE, Relay
from runtimeproxy.relay.events import CallHeld

RECORDINGS: Final = Path(__file__).parents[1] / "tests/golden/cri"
HELD: Final = held_paths((), guarded=True)
SECONDS: Final = 3.0
SHOWN: Final = 16


class Read(NamedTuple):
    from_client: bool
    data: bytes


def parse_recording(content: bytes) -> Iterator[Read]:
    """Parse records of `C` or `S`, a big-endian length of four bytes, and the bytes of one read."""
    position = 0
    while position < len(content):
        start = position + 5
        position = start + int.from_bytes(content[position + 1 : start])
        yield Read(content[start - 5 : start - 4] == b"C", content[start:position])


def count_calls(reads: list[Read]) -> int:
    stream = b"".join(read.data for read in reads if read.from_client).removeprefix(frames.PREFACE)
    return len({number for kind, _, number, _, _ in FrameReader().frames(stream) if kind == frames.HEADERS})


def replay(reads: list[Read]) -> None:
    relay = Relay(held_paths=HELD, budget=HoldBudget(4 * MAX_MESSAGE), clock=time.monotonic)
    for read in reads:
        if read.from_client:
            relay.receive_from_client(read.data)
        else:
            relay.receive_from_runtime(read.data)
        for event in relay.take_events():
            if isinstance(event, CallHeld):
                relay.forward(event.stream)
        relay.to_runtime()
        relay.to_client()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.profile", description="Where the relay's own time goes.")
    parser.add_argument("recordings", nargs="*", type=Path, metavar="FILE.rec.gz")
    paths = parser.parse_args().recordings or sorted(RECORDINGS.glob("*.rec.gz"))
    for path in paths:
        reads = list(parse_recording(gzip.decompress(path.read_bytes())))
        calls = count_calls(reads)
        print(f"{path.name}: {calls} calls in {len(reads)} reads: {_best_us(reads) / calls:.1f} µs a call")
        _print_profile(reads, calls)


def _best_us(reads: list[Read]) -> float:
    """Return the fastest replay within SECONDS: other load on the machine only makes a replay slower."""
    until = time.perf_counter() + SECONDS
    best = float("inf")
    while (began := time.perf_counter()) < until:
        replay(reads)
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def _print_profile(reads: list[Read], calls: int) -> None:
    profile = cProfile.Profile()
    until, replays = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < until:
        profile.runcall(replay, reads)
        replays += 1
    rows = sorted(((own, times, where) for where, (_, times, own, _, _) in _functions(profile).items()), reverse=True)
    everything = sum(own for own, _, _ in rows)
    print(f"{'share':>7}{'calls a call':>14}  function (its own time, under the profiler)")
    for own, times, (file, line, name) in rows[:SHOWN]:
        where = f"{Path(file).name}:{line} {name}" if line else name
        print(f"{own / everything:7.1%}{times / calls / replays:14.1f}  {where}")
    print()


def _functions(profile: cProfile.Profile) -> dict[tuple[str, int, str], tuple[int, int, float, float, object]]:
    """Return the functions: pstats keeps them in an attribute that its type stubs do not declare."""
    variable: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(pstats.Stats(profile))["stats"]
    return variable


if __name__ == "__main__":
    main()
