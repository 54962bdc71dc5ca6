"""Write a ledger of an older version of Lading: with an earlier schema, and grants."""

import contextlib
import sqlite3
from pathlib import Path
from unittest.mock import patch

from hooks.ledger import file, store
from hooks.ledger.schema import MIGRATIONS
from hooks.model.grant import Grant


def make_old_ledger(path: Path, schema: int, *grants: Grant) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with patch("hooks.ledger.file.MIGRATIONS", MIGRATIONS[:schema]):
        file.make(path).rename(path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for grant in grants:
            store._write(db, grant)
