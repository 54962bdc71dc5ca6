"""Create a ledger in a folder of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.ledger.store import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "node.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path) as opened:
        yield opened


def reopened(ledger: Ledger) -> Ledger:
    ledger.close()
    return Ledger.open(ledger.path)
