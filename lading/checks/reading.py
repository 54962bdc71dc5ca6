"""Share readings between checks: each is made once, and a failure is reported by one check only.

Tests: tests/unit/lading/checks/test_run.py
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lading.errors import LadingError

T = TypeVar("T")


class ElsewhereError(Exception):
    """Report that an input of a check could not be read. The argument names the check that reports why."""


class Readings:
    """Hold the readings of one subject. Create and use an object on one event loop only."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Make the reading `name` once, and return its result to every caller. The reading continues after a timeout of the
        first caller, because the others may have more time left."""
        if name not in self._begun:
            self._begun[name] = asyncio.ensure_future(read())
        result: T = await asyncio.shield(self._begun[name])
        return result


async def read_shared(check: str, reading: Awaitable[T]) -> T:
    """Return a reading that several checks need. If it fails, raise ElsewhereError: only `check` reports the cause."""
    try:
        return await reading
    except (LadingError, OSError) as e:
        raise ElsewhereError(check) from e
