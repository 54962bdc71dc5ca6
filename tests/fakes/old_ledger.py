"""Write a ledger of an older version of Lading: with an earlier schema, and grants."""

import contextlib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hooks.ledger import file
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.store import Ledger
from hooks.model.grant import Grant


def make_old_ledger(path: Path, schema: int, *grants: Grant) -> None:
    """Make a ledger of this schema. A ledger of today writes the rows of the grants, which are the same in all schemas."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with patch("hooks.ledger.file.MIGRATIONS", MIGRATIONS[:schema]):
        file.make(path).rename(path)
    with TemporaryDirectory() as folder, Ledger.open(Path(folder) / "state" / "node.db") as today:
        for grant in grants:
            today.record(grant)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("ATTACH ? AS today", (str(today.path),))
            for table in ("grants", "grant_containers"):
                db.execute(f"INSERT INTO main.{table} SELECT * FROM today.{table}")  # noqa: S608  constants only
