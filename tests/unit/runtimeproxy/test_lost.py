from pathlib import Path

import pytest

from runtimeproxy.lost import lost_file, read_lost, write_lost


def test_the_number_outlives_the_process(tmp_path: Path) -> None:
    path = lost_file(tmp_path / "cri.sock")
    assert read_lost(path) == 0
    write_lost(path, 12)
    assert read_lost(path) == 12


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"\xff\xfe", b"1 2", b"9" * 100_000])
def test_a_damaged_file_counts_at_most_as_a_number(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cri.sock.lost-calls"
    path.write_bytes(content)
    assert 0 <= read_lost(path) < 10**20


def test_a_folder_that_cannot_be_written_stops_no_one(tmp_path: Path) -> None:
    write_lost(tmp_path / "gone" / "cri.sock.lost-calls", 1)
    assert read_lost(tmp_path) == 0
