"""Report on stderr what is waited for while the API server does not answer: on a terminal and on a pipe, in a script's log too.

Enters: each call while it lasts. Leaves: a line once nothing was answered for AFTER_S, and again whenever that time has
doubled. Any answer begins the silence anew: of a large cluster that is read page by page nothing is said.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import click

from lading.log import printable

AFTER_S: Final = 3.0


class Patience:
    """The report of slow answers, on a running loop. `server`: its URL."""

    def __init__(self, server: str, *, after_s: float = AFTER_S, tell: Callable[[str], None] | None = None) -> None:
        self._server = server
        self._after_s = after_s
        self._tell = tell or (lambda words: click.echo(words, err=True))
        self._open: dict[object, str] = {}  # calls in progress, the oldest first
        self._due: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def around(self, call: str) -> Iterator[None]:
        """Watch a call while it lasts. `call`: its name, as "get /api/v1/pods"."""
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
        self._due = asyncio.get_running_loop().call_later(silent_s - since_s, self._say, silent_s)

    def _stop(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _say(self, silent_s: float) -> None:
        first, *others = self._open.values()
        more = f", and {len(others)} more" if others else ""
        self._tell(printable(f"waiting: {self._server} has not answered for {silent_s:g} s: {first}{more}"))
        self._listen(2 * silent_s, silent_s)
