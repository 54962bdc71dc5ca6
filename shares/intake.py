"""Decide when the server reads frames of one container, so that no container takes the server's time from others. Pure.

A container may send MAX_FRAMES at once, and then one frame each FRAME_NS. If it sends more, reading pauses until that rate is
kept again, and the frames wait in the container's sockets. After PATIENCE_NS of such pauses in close succession, connections
with many waiting frames are floods. A process that waits for each answer never has many.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from shares.policy.model import MS

FRAME_NS: Final = MS // 5  # 5,000 frames a second take from a twentieth to a third of the server's time
MAX_FRAMES: Final = 10_000  # a program may free thousands of allocations when it ends
PATIENCE_NS: Final = 5_000 * MS
LULL_NS: Final = 1_000 * MS  # a longer time without a pause ends the succession


class Pause(NamedTuple):
    until_ns: int
    is_flood: bool  # connections with many waiting frames are to be closed


class Intake:
    def __init__(self) -> None:
        self._allowance = Allowance(FRAME_NS, MAX_FRAMES)
        self._paused_ns: int | None = None  # time of the last pause
        self._since_ns = 0  # time of the first pause in close succession

    def count(self, frames: int, now_ns: int) -> bool:
        """Count frames that were read. Return whether reading has to pause."""
        self._allowance.use(frames, now_ns)
        return now_ns < self._allowance.ready_ns

    def pause(self, now_ns: int) -> Pause:
        """Note that reading pauses from now on."""
        if self._paused_ns is None or now_ns - self._paused_ns > LULL_NS:
            self._since_ns = now_ns
        self._paused_ns = now_ns
        is_flood = now_ns - self._since_ns >= PATIENCE_NS
        if is_flood:
            self._since_ns = now_ns
        return Pause(self._allowance.ready_ns, is_flood)


@dataclass(slots=True)
class Allowance:
    """Count the use of something that is limited to one in each interval, and to a number at once. Nothing is refused.

    For example, with an interval of 200 µs and 10,000 at once, 15,000 may be used within the first second, and then 5,000 a
    second.
    """

    interval_ns: int
    most: int
    _full_ns: int = 0  # time when the whole number is available again

    def use(self, number: int, now_ns: int) -> None:
        self._full_ns = max(self._full_ns, now_ns) + number * self.interval_ns

    @property
    def ready_ns(self) -> int:
        """Return the time from which at least one is available."""
        return self._full_ns - (self.most - 1) * self.interval_ns
