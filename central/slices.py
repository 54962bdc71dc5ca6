"""Long work on the one loop, in slices: others have their turn in between.

A look at many nodes for many pods takes as long as it takes; kube-scheduler's next question waits for one slice of it at most.
Whoever pauses finds that the ledger has changed.
"""

import asyncio
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.005  # and the piece of work that goes beyond it: mostly a fit, some 0.1 ms


class Slices:
    """Of one piece of work. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + SLICE_S

    async def pause(self) -> None:
        """To be called after each small step."""
        if self._clock() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + SLICE_S
