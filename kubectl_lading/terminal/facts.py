"""A few facts about one thing, one a line: a name, and the text."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from kubectl_lading.terminal.output import text


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, words in pairs:
        grid.add_row(text(name, "dim"), words if isinstance(words, Text) else text(words))
    return grid
