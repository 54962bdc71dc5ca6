"""Says on stderr what is going on, where somebody looks and it takes longer than half a second."""

import asyncio
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.status import Status

AFTER_S: Final = 0.5


class Progress:
    """`with Progress("reading the cluster") as progress: … progress.say("pods", 1000)`, on a running loop."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._counts: dict[str, int] = {}
        self._console = Console(stderr=True)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        self._due = asyncio.get_running_loop().call_later(AFTER_S, self._show)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._due.cancel()
        if self._status is not None:
            self._status.stop()

    def say(self, what: str, count: int) -> None:
        self._counts[what] = count
        if self._status is not None:
            self._status.update(self._line)

    def _show(self) -> None:
        if self._console.is_terminal:
            self._status = self._console.status(self._line)
            self._status.start()

    @property
    def _line(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items())
        return f"{self._text}: {counts}" if counts else self._text
