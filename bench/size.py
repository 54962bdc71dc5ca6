"""Define the sizes of the proxy's measurements, and the result of one part of them."""

from dataclasses import dataclass, field
from typing import Final

from bench.figures import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    rounds: int
    calls: int  # number of calls in a round
    lists: int  # number of lists in a round
    pairs: int  # pairs of created containers
    messages: int  # messages of 15 MB
    calls_for_memory: int
    creates_for_memory: int


FULL: Final = Size(rounds=15, calls=1000, lists=50, pairs=300, messages=30, calls_for_memory=200_000, creates_for_memory=5_000)
QUICK: Final = Size(rounds=3, calls=500, lists=20, pairs=20, messages=5, calls_for_memory=20_000, creates_for_memory=100)


@dataclass(frozen=True, slots=True)
class Part:
    results: Results
    notes: list[str] = field(default_factory=list)  # printed beside the table
