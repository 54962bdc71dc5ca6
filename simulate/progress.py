"""Show the progress of a long command on stderr: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

WIDTH: Final = 30
_REDRAWN_S: Final = 0.1
_REPORT_S: Final = 5.0


class Progress:
    def __init__(
        self, what: str, total: int, *, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._total = max(1, total)
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._bar = self._out.isatty()
        self._done = 0
        self._began = self._reported_at = clock()

    def advance(self, by: int) -> None:
        self._done += by
        now = self._clock()
        if now - self._reported_at >= (_REDRAWN_S if self._bar else _REPORT_S):
            self._reported_at = now
            self._report(now)

    def end(self) -> None:
        if self._bar:
            print("\r\033[K", end="", file=self._out, flush=True)

    def _report(self, now: float) -> None:
        share = min(1.0, self._done / self._total)
        left_s = (now - self._began) * (1 - share) / share if share else 0.0
        text = f"{self._what}  {share:4.0%}" + (f"  {left_s:.0f} s left" if share else "")
        if self._bar:
            full = round(share * WIDTH)
            print(f"\r\033[K{'█' * full}{'░' * (WIDTH - full)}  {text}", end="", file=self._out, flush=True)
        else:
            print(text, file=self._out, flush=True)
