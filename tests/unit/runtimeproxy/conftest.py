"""Share fixtures between the tests of the proxy's hook side: a short folder for sockets, a log that can be read back."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.log import Event, Level, Log


class Records:
    """A sink that keeps what was logged."""

    def __init__(self) -> None:
        self.written: list[tuple[Level, Event, str, dict[str, str]]] = []

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        self.written.append((level, event, message, fields))

    def events(self) -> list[Event]:
        return [event for _, event, _, _ in self.written]

    def fields(self, event: Event) -> list[dict[str, str]]:
        return [fields for _, e, _, fields in self.written if e is event]

    def text(self) -> str:
        return repr(self.written)


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def log(records: Records) -> Log:
    return Log(records, Level.DEBUG)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        yield Path(folder)
