"""Choose how much of the tests runs: a part in `make test`, the rest in `make test-long`.

`pytest --part=quick` runs one of ONE_OF tests of a file, and of a test with many sets of parameters FEW; none with the marker
`long`. `--part=rest` runs those that this leaves out, and the tests that repeat themselves. Without `--part` all run.

`LADING_DEPTH=long` chooses large numbers, and `LADING_DEPTH=20` twenty times these, for a run of hours. A test whose number
depends on this has the marker `repeats`, or is one of Hypothesis.
"""

import os
from collections.abc import Iterable
from typing import Final

import pytest

FEW: Final = 2
ONE_OF: Final = 3  # every third test of a file, beginning with the first
QUICK, REST = PARTS = ("quick", "rest")
_ASKED: Final = os.environ.get("LADING_DEPTH", "quick")
if _ASKED not in ("quick", "long") and not _ASKED.isdecimal():
    raise ValueError(f"LADING_DEPTH is {_ASKED}; it is quick, long, or the factor by which the long numbers are multiplied")
_FACTOR: Final = int(_ASKED) if _ASKED.isdecimal() else 1


def repeats(quick: int, *, long: int) -> int:
    """Return how often to repeat: `quick` in `make test`, `long` in `make test-long`, or a multiple of `long`."""
    return quick if _ASKED == "quick" else long * _FACTOR


def choose(items: Iterable[pytest.Item], part: str) -> set[pytest.Item]:
    """Return the tests that `--part` selects."""
    files: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if not item.get_closest_marker("long"):
            test = item.nodeid.partition("[")[0]
            files.setdefault(test.partition("::")[0], {}).setdefault(test, []).append(item)
    quick = set[pytest.Item]()
    for sets in files.values():
        for alike in [*sets.values()][::ONE_OF]:
            spread = {round((len(alike) - 1) * number / (FEW - 1)) for number in range(FEW)}
            quick.update(alike[number] for number in spread)
    if part == QUICK:
        return quick
    return {item for item in items if item not in quick or item.get_closest_marker("repeats")}
