"""Report on stderr while a command takes long: its progress, and the calls that the API server does not answer.

On a terminal, progress is one line that changes; on a pipe, it is a new line now and then. A line about slow answers appears
after SILENT_S seconds without any answer, and again whenever that time has doubled, also in a script's log. Any answer restarts
the time: reading a large cluster page by page causes no such line.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

import click
from rich.console import Console
from rich.status import Status

from lading.log import printable

T = TypeVar("T")

AFTER_S: Final = 0.5  # seconds until progress appears on a terminal
ON_A_PIPE_S: Final = 10.0  # seconds until the first line of progress on a pipe: a script's log needs few lines
SILENT_S: Final = 3.0  # seconds without an answer until the first line about slow answers


class Progress:
    """Show the progress of a task, on a running loop. On a pipe, print nothing before the first count, because `Patience`
    reports a server that does not answer.

    Example: `with Progress("reading the cluster") as progress: … progress.say("pods", 1000)`."""

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

    def show_count(self, what: str, count: int) -> None:
        self._counts[what] = count
        if self._status is not None:
            self._status.update(self._line)

    def _show(self) -> None:
        self._status = self._console.status(self._line)
        self._status.start()

    def _write(self, after_s: float) -> None:
        """Print the line of progress, and schedule the next one after twice the time."""
        if self._counts:
            click.echo(self._line, err=True)
        self._due = self._loop.call_later(after_s, self._write, 2 * after_s)

    @property
    def _line(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items())
        return f"{self._text}: {counts}" if counts else self._text


async def collect(text: str, what: str, steps: Iterable[T]) -> list[T]:
    """Return all results of `steps`, and show their number. Other tasks of the event loop run in between."""
    made = []
    with Progress(text) as progress:
        for one in steps:
            made.append(one)
            progress.show_count(what, len(made))
            await asyncio.sleep(0)
    return made


class Patience:
    """Report slow answers of the API server, on a running loop. `server`: URL of the API server."""

    def __init__(self, server: str, *, after_s: float = SILENT_S, announce: Callable[[str], None] | None = None) -> None:
        self._server = server
        self._after_s = after_s
        self._print = announce or (lambda text: click.echo(text, err=True))
        self._open: dict[object, str] = {}  # names of the calls in progress, the oldest first
        self._due: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def around(self, call: str) -> Iterator[None]:
        """Watch a call while it lasts. `call`: name of the call, such as "get /api/v1/pods"."""
        key = object()
        self._open[key] = call
        if self._due is None:
            self._listen(self._after_s)
        try:
            yield
        finally:
            del self._open[key]
            self._stop()
            if self._open:
                self._listen(self._after_s)

    def _listen(self, silent_s: float, since_s: float = 0.0) -> None:
        self._due = asyncio.get_running_loop().call_later(silent_s - since_s, self._print_waiting, silent_s)

    def _stop(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _print_waiting(self, silent_s: float) -> None:
        first, *others = self._open.values()
        more = f", and {len(others)} more" if others else ""
        self._print(printable(f"waiting: {self._server} has not answered for {silent_s:g} s: {first}{more}"))
        self._listen(2 * silent_s, silent_s)
