"""Fuzzes one target: with atheris where it is installed, or by itself, seeded.

    python -m tests.fuzz.run relay --runs 1000000 --seed 7     random mutations of the corpus, no dependency
    python -m tests.fuzz.run relay --atheris [libFuzzer's own arguments, corpus folders]

A target is a module here with `play(data)`, which takes any bytes and raises where something is wrong. A case that fails is
written to tests/fuzz/corpus/TARGET/, where CI replays it for ever after; one that runs longer than HANG_S is a failure, too.
"""

import argparse
import hashlib
import importlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
TARGETS = {
    "relay": "the proxy's frame relay, with calls held",
    "server": "the hook server's end of a connection (lading.grpc.server)",
    "client": "the proxy's end of a connection to a hook server (lading.grpc.client)",
    "message": "protobuf's wire format in parts, and edited in place",
}
HANG_S = 5.0  # seconds of CPU time, so that a busy machine is no hang; the largest plays take some 50 ms
MAX_LENGTH = 400  # bytes of a case


class HangError(Exception):
    """A play that does not end."""


@contextmanager
def bounded() -> Iterator[None]:
    """For the main thread."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def player(target: str) -> Callable[[bytes], object]:
    """Imported late: after atheris, where it instruments."""
    play: Callable[[bytes], object] = importlib.import_module(f"tests.fuzz.{target}").play
    return play


def mutate(chance: random.Random, seeds: list[bytes]) -> bytes:
    """A new play: a seed with a few changes, two of them spliced, or nothing but chance."""
    if not seeds or chance.random() < 0.3:
        return chance.randbytes(chance.randint(1, 120))
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at, size = chance.randint(0, len(data)), chance.randint(1, 8)
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.randbytes(size)
            case 1:
                del data[at : at + size]
            case 2 if data:
                data[at % len(data)] = chance.randrange(256)
            case 3 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 4:
                data[at:at] = data[chance.randint(0, len(data)) :][: 4 * size]
            case _:
                other = chance.choice(seeds)
                data[at:] = other[chance.randint(0, len(other)) :]
    return bytes(data[:MAX_LENGTH])


def keep(target: str, data: bytes) -> Path:
    path = CORPUS / target / f"failed-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def fuzz(target: str, *, runs: int, seconds: float, seed: int) -> int:
    """Play until `runs`, or `seconds` of CPU time, are over, and return the number of plays. Keep and raise a failing one."""
    play, chance, seeds = player(target), random.Random(seed), corpus(target)  # noqa: S311  a seeded sequence is the point
    until = time.process_time() + seconds
    for number in range(runs):
        if number % 64 == 0 and time.process_time() > until:
            return number
        data = mutate(chance, seeds)
        try:
            with bounded():
                play(data)
        except Exception:
            print(f"case {number} of seed {seed}: {keep(target, data)}", file=sys.stderr)
            raise
    return runs


def with_atheris(target: str, argv: list[str]) -> None:
    atheris = importlib.import_module("atheris")  # no dependency of this project

    with atheris.instrument_imports(include=["runtimeproxy", "lading.grpc", "lading.http2"]):
        play = player(target)
    atheris.Setup([sys.argv[0], *argv], play)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS, help="; ".join(f"{name}: {what}" for name, what in TARGETS.items()))
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    options, rest = parser.parse_known_args()
    if options.atheris:
        with_atheris(options.target, rest)
        return
    started = time.monotonic()
    runs = fuzz(options.target, runs=options.runs, seconds=options.seconds, seed=options.seed)
    print(f"{options.target}: {runs} plays, seed {options.seed}, {time.monotonic() - started:.0f} s: ok")


if __name__ == "__main__":
    main()
