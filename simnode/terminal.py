"""What the demo prints: steps, tables, checks. Colours only on a terminal that wants them (https://no-color.org)."""

import os
import sys
from collections.abc import Iterable

_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"


class Terminal:
    """Prints, and remembers the checks that failed."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._steps = 0
        self.failures: list[str] = []

    def title(self, text: str) -> None:
        self._print(self._paint(_BOLD, text))

    def step(self, text: str) -> None:
        self._steps += 1
        self._print("")
        self._print(self._paint(_BOLD, f"{self._steps}. {text}"))

    def shown(self, heading: str, lines: Iterable[str]) -> None:
        """Lines as they came from somewhere else, set apart."""
        kept = [line for line in lines if line.strip()]
        self._print(f"   {heading}" + ("" if kept else self._paint(_DIM, "  (none)")))
        for line in kept:
            self._print("     " + self._paint(_DIM, line))

    def check(self, what: str, holds: bool) -> None:
        if holds:
            self._print(f"   {self._paint(_GREEN, 'ok')}   {what}")
        else:
            self._print(f"   {self._paint(_RED, 'FAIL')} {what}")
            self.failures.append(what)

    def _print(self, text: str) -> None:
        print(text, flush=True)

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colours and text else text
