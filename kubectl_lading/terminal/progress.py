"""Report progress on stderr where a task takes long: on a terminal a line that changes, on a pipe a line now and then."""

import asyncio
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console
from rich.status import Status

AFTER_S: Final = 0.5
ON_A_PIPE_S: Final = 10.0  # a script's log is read later, to find what went wrong


class Progress:
    """`with Progress("reading the cluster") as progress: … progress.say("pods", 1000)`, on a running loop. On a pipe nothing is
    said before there is something to count: who is not answered at all is told so by `patience`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._counts: dict[str, int] = {}
        self._console = Console(stderr=True)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._console.is_terminal:
            self._due = self._loop.call_later(AFTER_S, self._show)
        else:
            self._due = self._loop.call_later(ON_A_PIPE_S, self._write, ON_A_PIPE_S)
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
        self._status = self._console.status(self._line)
        self._status.start()

    def _write(self, after_s: float) -> None:
        """Write the line again whenever the time has doubled."""
        if self._counts:
            click.echo(self._line, err=True)
        self._due = self._loop.call_later(after_s, self._write, 2 * after_s)

    @property
    def _line(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items())
        return f"{self._text}: {counts}" if counts else self._text
