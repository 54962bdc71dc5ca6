"""A disk that takes no more: within the block, SQLite refuses each change of a database, on all of its connections.

SQLite itself refuses, by triggers of all tables, so that a test needs no connection of the code under test. A statement that
would change no row succeeds.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


@contextlib.contextmanager
def full_disk(database: Path) -> Iterator[None]:
    """Refuse all changes of the database until the end of the block."""
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        tables = [str(name) for (name,) in db.execute(_TABLES)]
        triggers = {f"full_{table}_{change}": (table, change) for table in tables for change in ("INSERT", "UPDATE", "DELETE")}
        for trigger, (table, change) in triggers.items():
            refusal = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
            db.execute(f"CREATE TRIGGER {trigger} BEFORE {change} ON {table} {refusal}")
    try:
        yield
    finally:
        with contextlib.closing(sqlite3.connect(database)) as db, db:
            for trigger in triggers:
                db.execute(f"DROP TRIGGER {trigger}")
