"""Keep the logged events and their fields in a sink, so that a test can check them."""

from dataclasses import dataclass, field

from central.loop.faults import Faults
from lading.log import Event, Level, Log


@dataclass
class Records:
    seen: list[tuple[Event, dict[str, str]]] = field(default_factory=list)

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        self.seen.append((event, fields))

    def count(self, event: Event) -> int:
        return sum(observed is event for observed, _ in self.seen)

    @property
    def log(self) -> Log:
        return Log(self, Level.DEBUG)


def made_faults() -> Faults:
    """Return faults for a test in which nothing fails."""
    return Faults(clock=lambda: 0.0, log=Records().log)
