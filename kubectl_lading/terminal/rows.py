"""A table that grows: later rows are written below the columns of the first ones, as `kubectl get -w` does."""

from collections.abc import Sequence
from typing import Final

import click
from rich.text import Text

from kubectl_lading.terminal.output import Cell, console, safe, text

_GAP: Final = 2


class Rows:
    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._first = [[text(head, "head") for head in heads], *rows]
        cells = [[safe(cell).cell_len for cell in row] for row in self._first]
        self._widths = [max(column) for column in zip(*cells, strict=True)]

    def print_all(self) -> None:
        for row in self._first:
            self.print(row)

    def print(self, row: Sequence[Cell]) -> None:
        """Print a row. A cell that is wider than its column moves the following ones."""
        line = Text()
        for cell, wide in zip(map(safe, row), self._widths, strict=True):
            line.append_text(cell)
            line.append(" " * (max(0, wide - cell.cell_len) + _GAP))
        line.rstrip()
        out = console()
        with out.capture() as said:
            out.print(line, crop=False, overflow="ignore", no_wrap=True)
        click.echo(said.get(), nl=False, color=out.is_terminal)
