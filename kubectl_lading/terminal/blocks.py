"""Lines in two columns below a heading: a subject and a text; a text that is too long continues in its own column."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubectl_lading.terminal.output import text
from kubectl_lading.terminal.words import listed

MOST_NAMES: Final = 6  # of nodes with the same text
_LONGEST: Final = 32  # columns of the subject
_DEEP: Final = 2


def pairs(rows: Sequence[tuple[str, Text]], *, style: str = "dim") -> RenderableType:
    """Yield the lines. `style`: of the subject; empty for names."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=all(len(name) <= _LONGEST for name, _ in rows), overflow="fold", max_width=_LONGEST)
    grid.add_column(overflow="fold")
    for name, said in rows:
        grid.add_row(text(name, style), said)
    return indented(grid)


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a few facts about one thing, one a line: a name, and the text."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, words in rows:
        grid.add_row(text(name, "dim"), words if isinstance(words, Text) else text(words))
    return grid


def under(name: str, said: Iterable[str], style: str = "") -> list[tuple[str, Text]]:
    """Yield several texts of one subject, whose name is written once."""
    return [("" if number else name, text(one, style)) for number, one in enumerate(said)]


def of_nodes(names: Sequence[str], said: Sequence[Text], *, wide: bool) -> list[tuple[str, Text]]:
    """Yield one text about several nodes. Many nodes are counted; `wide` names all of them, below, where there is room."""
    named = listed(names, len(names) if wide else MOST_NAMES)
    if not any(one.plain for one in said):
        return [("on", text(named))]
    few = len(names) <= MOST_NAMES
    left = ", ".join(names) if few else f"{len(names)} nodes"
    rows = [("" if number else left, one) for number, one in enumerate(said)]
    return rows if few else [*rows, ("", text(named, "dim"))]


def indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, _DEEP))
