"""Test the ledger and its disk, as files of a folder and as verdicts."""

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.read_node import read_disk, read_schema
from doctor.state import LITTLE_FREE, DiskReading, LedgerReading, decide_disk, decide_ledger
from hooks.ledger.file import LEAST_FREE
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.store import Ledger
from lading.checks.model import Verdict
from lading.errors import StateError
from lading.sockets import Access
from tests.unit.doctor.verdicts import only, states

NEWEST = len(MIGRATIONS)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "node.db"
    with Ledger.open(path):
        pass
    return path


def set_schema(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")


def test_a_sound_ledger_is_left_as_it_is(ledger: Path) -> None:
    before = ledger.read_bytes()
    assert states(decide_ledger(read_schema(ledger))) == [Verdict.OK]
    assert (ledger.read_bytes(), [path.name for path in ledger.parent.iterdir()]) == (before, ["node.db"])


def test_an_older_one_is_brought_up_to_date_by_its_daemon(ledger: Path) -> None:
    set_schema(ledger, NEWEST - 1)
    verdict = only(decide_ledger(read_schema(ledger)))
    assert verdict.verdict is Verdict.WARNING
    assert "restart lading-hooks" in verdict.mend


def test_none_yet(tmp_path: Path) -> None:
    assert read_schema(tmp_path / "node.db") == LedgerReading(path=tmp_path / "node.db")
    assert states(decide_ledger(LedgerReading(path=tmp_path))) == [Verdict.SKIPPED]


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 5000, b"text"])
def test_one_that_is_damaged(ledger: Path, content: bytes) -> None:
    ledger.write_bytes(content)
    with pytest.raises(StateError, match=r"node\.db"):
        read_schema(ledger)


def test_one_of_a_newer_lading(ledger: Path) -> None:
    set_schema(ledger, NEWEST + 1)
    with pytest.raises(StateError):
        read_schema(ledger)


WELL = DiskReading(folder=Path("/var/lib/lading"), there=True, access=Access(0, 0, 0o700), free=1 << 40, free_inodes=1 << 20)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [Verdict.OK]),
        ({"free_inodes": None}, [Verdict.OK]),
        ({"there": False}, [Verdict.SKIPPED]),
        ({"free": LEAST_FREE - 1}, [Verdict.FAILED]),
        ({"free": LITTLE_FREE - 1}, [Verdict.WARNING]),
        ({"free_inodes": 0}, [Verdict.FAILED]),
        ({"free_inodes": 7}, [Verdict.WARNING]),
        ({"read_only": True}, [Verdict.FAILED]),
        ({"access": Access(1000, 0, 0o700)}, [Verdict.FAILED, Verdict.OK]),
        ({"access": Access(0, 0, 0o777)}, [Verdict.FAILED, Verdict.OK]),
    ],
)
def test_disk(changes: dict[str, object], expected: list[Verdict]) -> None:
    assert states(decide_disk(replace(WELL, **changes))) == expected  # type: ignore[arg-type]


def test_reading_a_disk(tmp_path: Path) -> None:
    result = read_disk(tmp_path)
    assert result.there
    assert result.free > 0
    assert not result.read_only
    assert not read_disk(tmp_path / "none").there
