"""Readings that several checks are decided of: each made once, and a failure said by one check only."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lading.errors import LadingError

T = TypeVar("T")


class ElsewhereError(Exception):
    """What a check needs could not be read, and the check named here says why."""


class Readings:
    """Made and used on one event loop."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Goes on where the check that asked first has given up: the others may still be in time."""
        if name not in self._begun:
            self._begun[name] = asyncio.ensure_future(read())
        found: T = await asyncio.shield(self._begun[name])
        return found


async def said_by(check: str, reading: Awaitable[T]) -> T:
    """For every check but the one that is about this reading."""
    try:
        return await reading
    except (LadingError, OSError) as e:
        raise ElsewhereError(check) from e
