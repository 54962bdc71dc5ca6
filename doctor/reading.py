"""Share readings between checks: each is made once, and a failure is reported by one check only."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lading.errors import LadingError

T = TypeVar("T")


class ElsewhereError(Exception):
    """An input of a check could not be read; the named check reports why."""


class Readings:
    """The readings of one node. Created and used on one event loop."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read once, and return the result to every caller. The reading continues where the first check has timed out: the
        others may still be in time."""
        if name not in self._begun:
            self._begun[name] = asyncio.ensure_future(read())
        found: T = await asyncio.shield(self._begun[name])
        return found


async def said_by(check: str, reading: Awaitable[T]) -> T:
    """Await a reading for every check but `check`, which is about this reading. Raises ElsewhereError."""
    try:
        return await reading
    except (LadingError, OSError) as e:
        raise ElsewhereError(check) from e
