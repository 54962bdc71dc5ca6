"""Run an event loop whose time moves only while all tasks wait: hours pass in milliseconds, the same in each run.

Sockets within this process work: a socket that is ready is served before time moves. A wait that cannot end is an error.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 10.0  # real ones: a thread, or the kernel, may not have had its turn yet on a busy machine


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(PATIENCE_S)
            if not ready:
                raise RuntimeError("everybody waits, and nothing will come")
        elif not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  the signature of asyncio
        """Wait for threads without a limit, because a limit in simulated time ends at once. Python 3.12 and newer set one."""
        await super().shutdown_default_executor()

    def hold_up(self, seconds: float) -> None:
        """Advance the clock as if a callback of the loop ran for this time."""
        self._jumping.now += seconds


def run_simulated(story: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(story)
