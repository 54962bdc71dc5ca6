"""Different things as different numbers, so that they are hashed and compared once: equal numbers, equal things."""

from collections.abc import Hashable
from itertools import count
from typing import Final

REMEMBERED: Final = 32768  # a cluster has 15,000 nodes


class Interner:
    """The last ones. A number is given once: what was forgotten gets another, and is like nothing that has the old one."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh = count()

    def of(self, thing: Hashable) -> int:
        if len(self._numbers) >= REMEMBERED:
            self._numbers.clear()
        return self._numbers.setdefault(thing, next(self._fresh))
