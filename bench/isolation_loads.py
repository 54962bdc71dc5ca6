"""Measure what the fake card does for programs that share it, by Lading's tokens and by the driver's own time slices.

The loads are those of `make bench-gpu` (bench/gpu_loads.py), so that the figures can be compared with a real card's. What
counts is the work that the card has done for a program, not for how long the program might use the card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.gpu_loads import ALONE, ANSWER, CASES, TRAINING, Load, Made
from bench.gpu_ways import Slices, Tokens, Way, measure
from bench.isolation_real import Real, Results
from tests.shares.card import FakeCard

COLUMNS: Final = ("alone", "slices", "tokens")
EIGHT: Final = 8
ALL_CASES: Final[Mapping[str, Sequence[Load]]] = {
    **CASES,
    "limits": (
        replace(TRAINING, name="a", request=30, limit=30),
        replace(TRAINING, name="b", request=20, limit=20),
    ),
    "eight": (
        *(replace(ANSWER, name=f"answer{number}", request=12) for number in range(1, EIGHT)),
        replace(TRAINING, request=12),
    ),
}


def measure_loads(real: Real, folder: Path, *, seconds: float) -> Results:
    """Return the part of the card's time that it worked for each load, and the 99th percentile of the time for a batch.

    Of several answers of a case, only the one with the longest such time is named, as `answers`."""
    env = {**FakeCard().environment(folder), "LD_LIBRARY_PATH": str(real.driver)}
    slices = Slices(real, env, folder)
    ways: dict[str, Way] = {"slices": slices, "tokens": Tokens(real)}
    alone = {load.kind: measure(slices, [load], seconds).made[load.name] for load in ALONE}
    figures: dict[str, dict[str, Results]] = {"work": {}, "batch_p99_ms": {}}
    server: Results = {}
    for case, loads in ALL_CASES.items():
        _note(figures, case, "alone", {load.name: alone[load.kind] for load in loads})
        for way, measured in ((name, measure(way, loads, seconds)) for name, way in ways.items()):
            _note(figures, case, way, measured.made)
            if way == "tokens":
                server[case] = round(measured.server_part, 4)
    return {**{name: {**rows} for name, rows in figures.items()}, "server_cpu": server}


def _note(figures: dict[str, dict[str, Results]], case: str, way: str, made: Mapping[str, Made]) -> None:
    answers = [one for name, one in made.items() if name.startswith(ANSWER.name)]
    if len(answers) > 1:
        others = {name: one for name, one in made.items() if not name.startswith(ANSWER.name)}
        made = {**others, "answers": max(answers, key=lambda one: one.p99_ms)}
    for name, one in made.items():
        figures["work"].setdefault(f"{case}, {name}", {})[way] = round(one.part, 4)
        figures["batch_p99_ms"].setdefault(f"{case}, {name}", {})[way] = round(one.p99_ms, 3)
