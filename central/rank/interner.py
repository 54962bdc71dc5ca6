"""Number distinct values, so that each is hashed and compared once: equal numbers mean equal values.

Tests: tests/unit/central/rank/test_equivalence.py
"""

from collections.abc import Hashable
from itertools import count
from typing import Final

REMEMBERED: Final = 32768  # maximum numbered values; a cluster has 15,000 nodes


class Interner:
    """Keep the numbers of the last values. A number is assigned once: a value that was evicted gets a new number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh = count()

    def of(self, thing: Hashable) -> int:
        if len(self._numbers) >= REMEMBERED:
            self._numbers.clear()
        return self._numbers.setdefault(thing, next(self._fresh))
