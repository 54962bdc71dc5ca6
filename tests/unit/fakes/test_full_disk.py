"""Test the disk that takes no more."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.full_disk import full_disk


def test_changes_fail_on_every_connection_until_the_end_of_the_block(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("CREATE TABLE held (name TEXT PRIMARY KEY)")
        db.execute("INSERT INTO held VALUES ('a')")
        with full_disk(database):
            for change in (
                "INSERT INTO held VALUES ('b')",
                "INSERT OR IGNORE INTO held VALUES ('b')",
                "INSERT INTO held VALUES ('a') ON CONFLICT (name) DO UPDATE SET name = 'b'",
                "UPDATE held SET name = 'b'",
                "DELETE FROM held",
            ):
                with pytest.raises(sqlite3.Error, match="full"):
                    db.execute(change)
            assert db.execute("SELECT name FROM held").fetchall() == [("a",)]
        db.execute("INSERT INTO held VALUES ('b')")
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").fetchone() == (0,)
