"""Print the demos' output: steps, tables, checks. Colours only on a terminal that supports them (https://no-color.org)."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from lading.errors import LadingError

AGAIN: Final = "run it again; if it fails again, report this output and the logs"
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"


class Terminal:
    """Print steps and checks, and record the failed checks."""

    def __init__(self, out: TextIO | None = None) -> None:
        """Print to stdout by default."""
        self._out = sys.stdout if out is None else out
        self._colours = self._out.isatty() and "NO_COLOR" not in os.environ
        self._steps = 0
        self.checks: dict[str, bool] = {}

    @property
    def failures(self) -> list[str]:
        return [what for what, holds in self.checks.items() if not holds]

    def title(self, text: str) -> None:
        self._print(self._paint(_BOLD, text))

    def step(self, text: str) -> None:
        self._steps += 1
        self._print("")
        self._print(self._paint(_BOLD, f"{self._steps}. {text}"))

    def shown(self, heading: str, lines: Iterable[str]) -> None:
        """Print lines of another program, set apart."""
        kept = [line for line in lines if line.strip()]
        self._print(f"   {heading}" + ("" if kept else self._paint(_DIM, "  (none)")))
        for line in kept:
            self._print("     " + self._paint(_DIM, line))

    def commands(self, heading: str, commands: Mapping[str, str]) -> None:
        """Print commands, each below a comment that says what it shows. A shell can run the lines as they are printed."""
        self.shown(heading, (line for command, shows in commands.items() for line in (f"# {shows}", command)))

    def ended(self, text: str) -> None:
        self._print("")
        self._print(text)

    def verdict(self, command: str, error: LadingError | None = None) -> None:
        """Print the last line, `COMMAND: ok` or `COMMAND: failed: …`; before a failure its details, and what to do."""
        if error is None and not self.failures:
            self.ended(f"{command}: ok")
            return
        if error is not None and "\n" in error.message:
            self.ended(error.message)
        load = f"this machine has {os.cpu_count()} CPUs and a load of {os.getloadavg()[0]:.0f}"
        hint = error.hint if error else "read the lines marked FAIL and the logs"
        self.ended(f"what to do: {hint or AGAIN} ({load})")
        reason = error.message.partition("\n")[0] if error else "; ".join(self.failures)
        self.ended(f"{command}: failed: {reason}")

    def note(self, text: str) -> None:
        self._print(f"   {text}")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print columns as wide as needed; the last one is not padded."""
        widths = [max(len(row[n]) for row in (headers, *rows)) for n in range(len(headers))]
        for row in (headers, *rows):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self._print("   " + (self._paint(_DIM, text) if row is headers else text))

    def drawn(self, lines: Iterable[str]) -> None:
        """Print lines unchanged; the first one is their heading."""
        head, *rest = lines
        self._print("")
        self._print("   " + self._paint(_BOLD, head))
        for line in rest:
            self._print("   " + line)

    def check(self, what: str, holds: bool) -> None:
        if holds:
            self._print(f"   {self._paint(_GREEN, 'ok')}   {what}")
        else:
            self._print(f"   {self._paint(_RED, 'FAIL')} {what}")
        self.checks[what] = holds

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colours and text else text
