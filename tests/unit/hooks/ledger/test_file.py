from pathlib import Path

import pytest

from hooks.ledger import file
from hooks.ledger.file import find_ledger_problem


def test_a_ledger_that_can_be_written(tmp_path: Path) -> None:
    assert find_ledger_problem(tmp_path / "node.db", "") == ""


def test_a_ledger_whose_last_write_failed(tmp_path: Path) -> None:
    assert find_ledger_problem(tmp_path / "node.db", "disk I/O error") == "disk I/O error"


def test_a_full_disk_shows_before_the_next_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LEAST_FREE", 1 << 80)
    assert str(tmp_path) in find_ledger_problem(tmp_path / "node.db", "")
