"""Write answers: tables in kubectl's form for people, and the same structs as JSON or YAML for programs.

Enters: a msgspec struct, and the table that says it to people. Leaves: stdout. Colour only on a terminal (rich looks; NO_COLOR
is honoured); nothing is cut where stdout is no terminal, as little as possible where it is one. Texts of the cluster (names,
annotations, messages) have their control characters escaped.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec
import yaml
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kubectl_lading.flags import Output
from kubectl_lading.terminal.amounts import counts_in_words
from lading.log import printable

Cell = str | Text
_GAP: Final = 2
_UNLIMITED: Final = 10_000  # columns, for a pipe or a file
_NARROW: Final = 16  # columns, for text that continues on the line below

STYLES: Final = {
    "head": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "dim": "bright_black",
}


COUNTS: Final = Text(f"GPUS, VFS: {counts_in_words()}", style=STYLES["dim"])


def console() -> Console:
    """Return a console as wide as the terminal; else each row on one line."""
    out = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    return out if out.is_terminal else Console(file=sys.stdout, highlight=False, width=_UNLIMITED)


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, wraps: Sequence[str] = ()) -> Table:
    """Return a table without borders. On a terminal that is too narrow the columns `wraps` continue on the next line; by
    default the last one. If even that is too wide, the table has the width that it needs: lines that the terminal breaks lose
    nothing.
    """
    made = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False, header_style=STYLES["head"])
    cells = [[safe(cell) for cell in row] for row in rows]
    least = -_GAP
    for head, *column in zip(map(Text, heads), *cells, strict=True):
        folds = head.plain in (wraps or heads[-1:])
        made.add_column(head, overflow="fold", no_wrap=not folds)
        widest = max(cell.cell_len for cell in (head, *column))
        least += (min(widest, _NARROW) if folds else widest) + _GAP
    for row in cells:
        made.add_row(*row)
    if least > console().width:
        made.width = least
    return made


def safe(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))


def text(words: str, style: str = "") -> Text:
    """Return a text. `style`: a key of STYLES."""
    return Text(printable(words), style=STYLES.get(style, ""))


def show(value: object, output: Output, *tables: RenderableType) -> None:
    """Print `value` for programs, `tables` for people."""
    match output:
        case Output.JSON:
            click.echo(msgspec.json.format(msgspec.json.encode(plain(value)), indent=2))
        case Output.YAML:
            click.echo(yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True), nl=False)
        case Output.TABLE | Output.WIDE:
            out = console()
            with out.capture() as said:
                for one in tables:
                    out.print(one, crop=False)
            click.echo("\n".join(line.rstrip(" ") for line in said.get().splitlines()), color=out.is_terminal)


def plain(value: object) -> Any:
    """Return every key of every struct, also with default values: programs look keys up by name."""
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


def warn(*messages: str) -> None:
    """Print warnings on stderr."""
    for message in messages:
        click.echo(f"warning: {printable(message)}", err=True)
