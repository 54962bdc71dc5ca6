"""Long work as steps: a generator that yields after each small piece, so that its caller decides when others have their turn.

The work itself is pure and reads no clock. A caller without an event loop exhausts it; central goes on in slices
(`slices.in_slices`).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Steps = Iterator[None]
T = TypeVar("T")


def exhaust(steps: Steps) -> None:
    deque(steps, maxlen=0)


def returning(steps: Generator[None, None, T], found: list[T]) -> Steps:
    """Yield the steps, and add what they return to `found`."""
    found.append((yield from steps))


def result(steps: Generator[None, None, T]) -> T:
    """Take all steps at once. Return what they return."""
    found: list[T] = []
    exhaust(returning(steps, found))
    return found[0]


def go_on(steps: Steps, clock: Callable[[], float], until: float) -> None:
    """Take steps until that time; at least one."""
    for _ in steps:
        if clock() >= until:
            return
