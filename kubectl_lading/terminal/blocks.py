"""Lines in pairs, below a heading: what it is about, and what is said of it; what is too long goes on in its own column."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubectl_lading.terminal.output import text

_LONGEST: Final = 32  # columns of what it is about
_DEEP: Final = 2


def pairs(rows: Sequence[tuple[str, Text]], *, style: str = "dim") -> RenderableType:
    """`style`: of what it is about; empty for names."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=all(len(name) <= _LONGEST for name, _ in rows), overflow="fold", max_width=_LONGEST)
    grid.add_column(overflow="fold")
    for name, said in rows:
        grid.add_row(text(name, style), said)
    return indented(grid)


def under(name: str, said: Iterable[str], style: str = "") -> list[tuple[str, Text]]:
    """Several things that are said of one; its name is written once."""
    return [("" if number else name, text(one, style)) for number, one in enumerate(said)]


def indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, _DEEP))
