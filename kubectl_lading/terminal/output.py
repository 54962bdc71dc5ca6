"""Write answers: tables in kubectl's form for people, and the same structs as JSON or YAML for programs.

Take a msgspec struct, and the table that shows it to people. Write to stdout. Colours appear on a terminal only (rich detects
it, and honours NO_COLOR). Nothing is cut off if stdout is no terminal, and as little as possible if it is one. Control
characters in texts of the cluster (names, annotations, messages) are escaped.
"""

import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec
import yaml
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubectl_lading.flags import Flags, Output
from kubectl_lading.terminal.format import counts_as_text, listed
from lading.log import printable

Cell = str | Text
_GAP: Final = 2
_UNLIMITED: Final = 10_000  # width of a pipe or file, in columns
_NARROW: Final = 16  # minimum width, in columns, of a cell whose text continues on the next line

STYLES: Final = {"head": "bold", "good": "green", "warn": "yellow", "bad": "red", "dim": "bright_black"}


COUNTS: Final = Text(f"GPUS, VFS: {counts_as_text()}", style=STYLES["dim"])
MOST_NAMES: Final = 6  # maximum node names shown for one text; more nodes are counted
_LONGEST: Final = 32  # maximum width of a subject, in columns
_DEEP: Final = 2


def console() -> Console:
    """Return a console with the terminal's width; for a pipe or file, so wide that each row fits on one line."""
    out = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    return out if out.is_terminal else Console(file=sys.stdout, highlight=False, width=_UNLIMITED)


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, wraps: Sequence[str] = ()) -> Table:
    """Return a table without borders. On a narrow terminal, cells of the columns `wraps` (default: the last column) continue on
    the next line; if that is not enough, those of the widest other columns too, such as names. If the table is still too wide,
    it keeps its width, and the terminal breaks the lines."""
    made = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False, header_style=STYLES["head"])
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = {
        head: max(map(cell_len, (head, *(cell.plain for cell in column)))) for head, *column in zip(heads, *cells, strict=True)
    }
    folds, width = set(wraps or heads[-1:]), console().width
    for head in sorted(widths, key=lambda head: -widths[head]):
        if _least_width(widths, folds) > width:
            folds.add(head)
    for head in heads:
        made.add_column(Text(head), overflow="fold", no_wrap=head not in folds)
    for row in cells:
        made.add_row(*row)
    if _least_width(widths, folds) > width:
        made.width = _least_width(widths, folds)
    return made


def _least_width(widths: Mapping[str, int], folds: Collection[str]) -> int:
    columns = [min(width, _NARROW) if head in folds else width for head, width in widths.items()]
    return sum(columns) + _GAP * (len(columns) - 1)


def safe(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))


def text(message: str, style: str = "") -> Text:
    """Return `words` with control characters escaped. `style`: a key of STYLES."""
    return Text(printable(message), style=STYLES.get(style, ""))


def show(value: object, flags: Flags, *tables: RenderableType) -> None:
    """Print `value` for programs, `tables` for people."""
    match flags.output:
        case Output.JSON:
            click.echo(msgspec.json.format(msgspec.json.encode(plain(value)), indent=2))
        case Output.YAML:
            click.echo(yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True), nl=False)
        case Output.TABLE | Output.WIDE:
            out = console()
            with out.capture() as message:
                for one in without_headers(tables) if flags.no_headers else tables:
                    out.print(one, crop=False)
            click.echo("\n".join(line.rstrip(" ") for line in message.get().splitlines()), color=out.is_terminal)


def without_headers(tables: Sequence[RenderableType]) -> Sequence[RenderableType]:
    """Return the tables without headers and without the lines that explain them; anything else unchanged."""
    real = [one for one in tables if isinstance(one, Table)]
    for one in real:
        one.show_header = False
    return real or tables


def plain(value: object) -> Any:
    """Convert a value to plain types. Structs keep the keys with default values, because programs look up keys by name."""
    match value:
        case msgspec.Struct():
            names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            return {written: plain(getattr(value, name)) for written, name in names}
        case Mapping():
            return {plain(key): plain(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(one) for one in value]
        case _:
            return msgspec.to_builtins(value)


def now() -> float:
    """Return the current time in Unix seconds."""
    return time.time()


def warn(*messages: str) -> None:
    for message in messages:
        click.echo(f"warning: {printable(message)}", err=True)


class Rows:
    """Print a table row by row. Later rows use the column widths of the first rows, as `kubectl get -w` does."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, headers: bool = True) -> None:
        titles = [text(head, "head") for head in heads]
        self._first = [titles, *rows] if headers else rows
        cells = [[safe(cell).cell_len for cell in row] for row in (titles, *rows)]
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
        with out.capture() as message:
            out.print(line, crop=False, overflow="ignore", no_wrap=True)
        click.echo(message.get(), nl=False, color=out.is_terminal)


def pairs(rows: Sequence[tuple[str, Text]], *, style: str = "dim") -> RenderableType:
    """Return indented lines in two columns: a subject and a text. A long text continues in its own column. `style`: style of
    the subjects; empty for names."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=all(len(name) <= _LONGEST for name, _ in rows), overflow="fold", max_width=_LONGEST)
    grid.add_column(overflow="fold")
    for name, message in rows:
        grid.add_row(text(name, style), message)
    return indented(grid)


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return facts about one object as lines of two columns: a name and a text."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, message in rows:
        grid.add_row(text(name, "dim"), message if isinstance(message, Text) else text(message))
    return grid


def under(name: str, message: Iterable[str], style: str = "") -> list[tuple[str, Text]]:
    """Return a row for each text; only the first has the subject's name."""
    return [("" if number else name, text(one, style)) for number, one in enumerate(message)]


def of_nodes(names: Sequence[str], texts: Sequence[Text], *, wide: bool) -> list[tuple[str, Text]]:
    """Return rows with one text about several nodes. More than MOST_NAMES nodes are counted, and named below the text: with
    `wide` all, else some."""
    named = listed(names, len(names) if wide else MOST_NAMES)
    if not any(one.plain for one in texts):
        return [("on", text(named))]
    few = len(names) <= MOST_NAMES
    left = ", ".join(names) if few else f"{len(names)} nodes"
    rows = [("" if number else left, one) for number, one in enumerate(texts)]
    return rows if few else [*rows, ("", text(named, "dim"))]


def indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, _DEEP))
