"""Lines in pairs, below a heading: what it is about, and what is said of it; what is too long goes on in its own column."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubectl_lading.terminal.output import text

MOST_NAMES: Final = 6  # of nodes of which the same is said
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


def of_nodes(names: Sequence[str], said: Sequence[Text], *, wide: bool) -> list[tuple[str, Text]]:
    """The same of several nodes. Many are counted; `wide` names them all, below, where there is room."""
    if not any(one.plain for one in said):
        return [("on", text(_listed(names, wide=wide)))]
    few = len(names) <= MOST_NAMES
    left = ", ".join(names) if few else f"{len(names)} nodes"
    rows = [("" if number else left, one) for number, one in enumerate(said)]
    return rows if few else [*rows, ("", text(_listed(names, wide=wide), "dim"))]


def _listed(names: Sequence[str], *, wide: bool) -> str:
    named = names if wide else names[:MOST_NAMES]
    more = f" and {len(names) - len(named)} more" if len(named) < len(names) else ""
    return ", ".join(named) + more


def indented(what: RenderableType) -> RenderableType:
    return Padding(what, (0, 0, 0, _DEEP))
