"""Keep logged events in a sink, so that a test can check them."""

from central.loop.faults import Faults
from lading.log import Event, Level, Log


class Records:
    def __init__(self) -> None:
        self.written: list[tuple[Level, Event, str, dict[str, str]]] = []

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        self.written.append((level, event, message, fields))

    @property
    def seen(self) -> list[tuple[Event, dict[str, str]]]:
        return [(event, fields) for _, event, _, fields in self.written]

    def events(self) -> list[Event]:
        return [event for event, _ in self.seen]

    def fields(self, event: Event) -> list[dict[str, str]]:
        return [fields for observed, fields in self.seen if observed is event]

    def count(self, event: Event) -> int:
        return len(self.fields(event))

    def text(self) -> str:
        return repr(self.written)

    @property
    def log(self) -> Log:
        return Log(self, Level.DEBUG)


def made_faults() -> Faults:
    """Return faults for a test in which nothing fails."""
    return Faults(clock=lambda: 0.0, log=Records().log)
