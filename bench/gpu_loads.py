"""Loads of a card, what a program made of one, and what is measured of several that share a card.

A program launches kernels in batches, and synchronises after each batch. What counts is the work that the card has done for the
program, by kernels whose length is known: not the time for which the program might use the card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.figures import percentile
from lading.errors import LadingError

TENTHS: Final = 10  # gpu-work counts the work of each tenth of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    name: str
    kernel_us: int
    batch: int
    period_ms: float = 0  # 0: the next batch follows at once
    request: int = 50
    limit: int = 100

    def words(self, seconds: float) -> list[str]:
        """Return the arguments of gpu-work that make this load."""
        return ["load", *map(str, (int(seconds * 1000), self.kernel_us, self.batch, int(self.period_ms * 1000)))]

    @property
    def kind(self) -> tuple[int, int, float]:
        """Return what makes two loads the same on a card of their own."""
        return (self.kernel_us, self.batch, self.period_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Hold what the card did for one program."""

    part: float  # average part of the card's time
    most: float  # the largest such part in any second
    p50_ms: float  # median time for a batch
    p99_ms: float
    max_ms: float

    def rounded(self) -> dict[str, float]:
        """Return the figures for a file of results."""
        return {name: round(getattr(self, name), 4) for name in self.__slots__}


def read(out: str) -> Made:
    """Return what gpu-work printed about a load."""
    done, took = ([float(word) for word in line.split()] for line in out.splitlines()[-2:])
    if not took:
        raise LadingError("cannot measure a load: the card finished none of its batches")
    seconds = [sum(done[at : at + TENTHS]) / 1e6 for at in range(max(1, len(done) - TENTHS + 1))]
    times = [one / 1000 for one in took]
    return Made(
        part=sum(done) / (len(done) * 1e5),
        most=max(seconds),
        p50_ms=percentile(times, 0.5),
        p99_ms=percentile(times, 0.99),
        max_ms=max(times),
    )


ANSWER: Final = Load(name="answer", kernel_us=4, batch=50, period_ms=20)  # 50 small layers, 50 times a second
TRAINING: Final = Load(name="training", kernel_us=200, batch=4)
TINY: Final = Load(name="tiny", kernel_us=2, batch=200)
LONG: Final = Load(name="long", kernel_us=1600, batch=8)
BURSTS: Final = Load(name="bursts", kernel_us=5000, batch=10, period_ms=500, request=30)
FLOOD: Final = Load(name="flood", kernel_us=20_000, batch=2, request=30)
MANY: Final = 16


def _of(load: Load, request: int, name: str = "") -> Load:
    return replace(load, request=request, name=name or load.name)


CASES: Final[Mapping[str, Sequence[Load]]] = {
    "answer": (ANSWER, TRAINING),
    "tiny": (TINY, TRAINING),
    "70_30": (_of(TRAINING, 70, "a"), _of(TRAINING, 30, "b")),
    "50_30_20": (_of(TRAINING, 50, "a"), _of(TRAINING, 30, "b"), _of(TRAINING, 20, "c")),
    "long": (LONG, TRAINING),
    "bursts": (BURSTS, _of(TRAINING, 70)),
    "flood": (FLOOD, _of(TRAINING, 70)),
    "limit": (replace(TRAINING, request=30, limit=30),),
    "sixteen": (*(_of(ANSWER, 6, f"answer{number}") for number in range(1, MANY)), _of(TRAINING, 6)),
}
ALONE: Final = (ANSWER, TRAINING, TINY, LONG, BURSTS, FLOOD)
