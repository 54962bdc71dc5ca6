"""Count the use of something that is limited to one in each interval, and to a number at once. Pure, in nanoseconds.

For example, with an interval of 200 µs and 10,000 at once, 15,000 may be used within the first second, and then 5,000 a second.
Nothing is refused here: the caller asks, after each use, when the next one is due.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Allowance:
    interval_ns: int
    most: int
    _full_ns: int = 0  # time when the whole number is available again

    def use(self, number: int, now_ns: int) -> None:
        self._full_ns = max(self._full_ns, now_ns) + number * self.interval_ns

    @property
    def ready_ns(self) -> int:
        """Return the time from which at least one is available."""
        return self._full_ns - (self.most - 1) * self.interval_ns
