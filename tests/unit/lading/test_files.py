from pathlib import Path

import pytest

from lading.errors import HostError
from lading.files import replace_file


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".a.new").write_text("half")
    replace_file(tmp_path / "a", b"whole", mode=0o600)
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HostError):
        replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "old"
