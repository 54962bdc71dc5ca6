"""Test tables, lines in two columns, and the same structs for programs."""

import pytest
from rich.console import Console
from rich.text import Text

from kubectl_lading.terminal.output import MOST_NAMES, of_nodes, table

ROWS = [("h100-1", "10/35", "586/2142Gi 23%", "2 GPUs unusable, 1 problem"), ("n2", "0/8", "-", "ok")]


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_no_cell_is_cut(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Console(width=columns)
    with out.capture() as text:
        out.print(table(("NODE", "GPUS", "HELD", "HEALTH"), ROWS), crop=False)
    assert {word for row in ROWS for cell in row for word in cell.split()} <= set(text.get().split())


def test_where_there_is_room_a_line_is_as_wide_as_the_terminal_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert table(("NODE", "GPUS", "HELD", "HEALTH"), ROWS).width is None


def test_long_names_are_broken_where_the_line_would_be_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    name, node = "training-7d9c8b6f5d-x2k4q-worker-12", "gke-cluster-pool-of-accelerators-0f3a9c1b-x7zq"
    pods = table(
        ("NAMESPACE", "POD", "STATE", "NODE", "AGE", "ASKS"), [("team-a", name, "holding", node, "120m", "main: 1 GPU")]
    )
    out = Console(width=80, color_system=None)
    with out.capture() as text:
        out.print(pods, crop=False)
    lines = [line.rstrip() for line in text.get().splitlines()]
    assert max(map(len, lines)) <= 80
    assert "holding" in lines[1]


MANY = [f"n{number}" for number in range(MOST_NAMES + 3)]


def rows(names: list[str], *text: str, wide: bool = False) -> list[tuple[str, str]]:
    return [(left, right.plain) for left, right in of_nodes(names, [Text(one) for one in text], wide=wide)]


def test_few_stand_beside_what_is_reported_of_them() -> None:
    assert rows(["a", "b"], "full", "fits later") == [("a, b", "full"), ("", "fits later")]


@pytest.mark.parametrize("wide", [False, True])
def test_many_are_counted_and_named_below(wide: bool) -> None:
    first, second = rows(MANY, "full", wide=wide)
    assert first == (f"{len(MANY)} nodes", "full")
    assert (MANY[0] in second[1], MANY[-1] in second[1]) == (True, wide)


def test_of_those_of_which_nothing_is_reported_the_names_are() -> None:
    ((_, text),) = rows(["a", "b"], "")
    assert text == "a, b"
