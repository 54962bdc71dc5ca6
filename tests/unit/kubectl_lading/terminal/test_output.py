"""How answers leave: nothing of a table is lost, however narrow the terminal is."""

import pytest
from rich.console import Console

from kubectl_lading.terminal.output import table

ROWS = [("h100-1", "10/35", "586/2142Gi 23%", "2 GPUs unusable, 1 problem"), ("n2", "0/8", "-", "ok")]


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_no_cell_is_cut(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Console(width=columns)
    with out.capture() as said:
        out.print(table(("NODE", "GPUS", "HELD", "HEALTH"), ROWS), crop=False)
    assert {word for row in ROWS for cell in row for word in cell.split()} <= set(said.get().split())


def test_where_there_is_room_a_line_is_as_wide_as_the_terminal_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert table(("NODE", "GPUS", "HELD", "HEALTH"), ROWS).width is None
