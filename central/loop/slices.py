"""Run long work on the event loop in slices, with other tasks in between.

Work on many nodes for many pods may take long, but kube-scheduler's next request waits for one slice at most. After a pause the
ledger may have changed.
"""

import asyncio
import math
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from central.loop.steps import Steps, returning

T = TypeVar("T")

SLICE_S: Final = 0.005  # seconds; exceeded by the last step of a slice, mostly a fit of about 0.1 ms


class Slices:
    """Divide one piece of work into slices. `clock`: monotonic seconds. `rest_s`: minimum seconds for other tasks between two
    slices. There is no rest if other tasks worked for at most `quiet_s` seconds."""

    def __init__(
        self, clock: Callable[[], float], *, slice_s: float | None = None, rest_s: float = 0.0, quiet_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._rest_s = rest_s
        self._quiet_s = quiet_s
        self._until = clock() + self._slice_s

    async def pause(self) -> None:
        """Pause if the slice is over. Call this after each small step."""
        ended = self._clock()
        if ended < self._until:
            return
        if self._quiet_s:
            await asyncio.sleep(0)
        if not self._quiet_s or self._clock() - ended > self._quiet_s:
            await asyncio.sleep(self._rest_s)
        self._until = self._clock() + self._slice_s


async def in_slices(steps: Steps, clock: Callable[[], float], *, until: float = math.inf) -> bool:
    """Run the steps in slices, with other tasks in between. Return False if the time `until` came before the steps ended."""
    slices = Slices(clock)
    for _ in steps:
        if clock() >= until:
            return False
        await slices.pause()
    return True


async def result_in_slices(steps: Generator[None, None, T], clock: Callable[[], float]) -> T:
    """Run all steps in slices, with other tasks in between, and return the result of the steps."""
    result: list[T] = []
    await in_slices(returning(steps, result), clock)
    return result[0]
