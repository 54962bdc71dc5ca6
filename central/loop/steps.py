"""Represent long work as a generator that yields after each small step, so that its caller decides when other tasks run.

The work itself is pure and reads no clock. A caller without an event loop exhausts the generator; central runs it in slices
(`slices.in_slices`).

Tests: tests/unit/central/state/test_quotas.py
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Steps = Iterator[None]
T = TypeVar("T")


def exhaust(steps: Steps) -> None:
    deque(steps, maxlen=0)


def returning(steps: Generator[None, None, T], results: list[T]) -> Steps:
    """Yield the steps, and append their result to `results`."""
    results.append((yield from steps))


def result(steps: Generator[None, None, T]) -> T:
    """Run all steps at once, and return their result."""
    results: list[T] = []
    exhaust(returning(steps, results))
    return results[0]


def go_on(steps: Steps, clock: Callable[[], float], until: float) -> None:
    """Run steps until the time `until`, but at least one step."""
    for _ in steps:
        if clock() >= until:
            return
