import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hooks.model.inventory import Partition
from hooks.vendors.nvidia.nvswitch import TABLES, read_partitions, shipped_tables
from lading.errors import ConfigError


def modules(table: str) -> list[tuple[int, ...]]:
    return [partition.modules for partition in read_partitions(table)]


def test_no_name_is_no_partitions() -> None:
    assert read_partitions("") == ()


def test_the_boards_that_are_shipped() -> None:
    assert shipped_tables() == ("a100", "a100-8", "b200", "h100", "h200", "h800")


@pytest.mark.parametrize("table", ["h100", "h200", "h800"])
def test_hopper_pairs_are_not_neighbours(table: str) -> None:
    """Check the pairs that `fmpm -l` prints."""
    halves = [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert modules(table) == [(1, 2, 3, 4, 5, 6, 7, 8), *halves, (1, 3), (2, 4), (5, 7), (6, 8), *((n,) for n in range(1, 9))]


@pytest.mark.parametrize("table", ["b200", "a100-8"])
def test_other_boards_pairs_are_neighbours(table: str) -> None:
    assert modules(table)[3:7] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert len(modules(table)) == 15


def test_two_boards_of_a100() -> None:
    result = modules("a100")
    assert [len(one) for one in result] == [16, 8, 8, *[4] * 4, *[2] * 8, *[1] * 16]
    assert result[:3] == [tuple(range(1, 17)), tuple(range(1, 9)), tuple(range(9, 17))]


@pytest.mark.parametrize("table", [path.stem for path in sorted(TABLES.glob("*.json"))])
def test_partitions_of_one_size_cover_the_board_once(table: str) -> None:
    partitions = read_partitions(table)
    assert [partition.id for partition in partitions] == list(range(len(partitions)))
    board = sorted(partitions[0].modules)
    for size in {len(partition.modules) for partition in partitions}:
        assert sorted(chain(*(one.modules for one in partitions if len(one.modules) == size))) == board


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps({"partitions": [{"id": 5, "modules": [2, 1]}]}))
    assert read_partitions(str(path)) == (Partition(id=5, modules=(2, 1)),)


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(ConfigError) as caught:
        read_partitions("h1000")
    assert "h1000" in caught.value.message
    assert all(name in caught.value.hint for name in shipped_tables())


@pytest.mark.parametrize(
    ("partitions", "named"),
    [
        ([{"id": 0, "modules": [1, 2, 1]}], ("partitions[0].modules", "module 1")),
        ([{"id": 0, "modules": [1]}, {"id": 1, "modules": []}], ("partitions[1].modules",)),
        ([{"id": 0, "modules": [0]}], ("partitions[0].modules",)),
        ([{"id": 4, "modules": [1]}, {"id": 4, "modules": [2]}], ("partitions[1].id", "4")),
        ([{"id": 0, "gpus": [1]}], ("partitions[0]", "gpus")),
        ([], ("partitions",)),
        ("h100", ("partitions",)),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_its_place(tmp_path: Path, partitions: Any, named: tuple[str, ...]) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps({"partitions": partitions}))
    with pytest.raises(ConfigError) as caught:
        read_partitions(str(path))
    for text in (str(path), *named):
        assert text in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_what_is_no_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "board.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_partitions(str(path))
