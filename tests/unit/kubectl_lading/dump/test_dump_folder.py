"""Test the folder of a sysdump: what is written where, and that names from the cluster lead nowhere else."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_lading.dump.dump_folder import DumpFolder, safe_name
from lading.errors import HostError


@given(st.text())
def test_a_name_is_one_part_of_a_path(text: str) -> None:
    name = safe_name(text)
    assert name
    assert name not in (".", "..")
    assert "/" not in name
    assert safe_name(name) == name


def test_names_stay_below_the_folder(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path / "dump")
    folder.write("logs/../../../etc/passwd", b"x")
    assert folder.names == ["logs/_/_/_/etc/passwd"]
    assert (tmp_path / "dump/logs/_/_/_/etc/passwd").read_bytes() == b"x"


def test_a_list_may_begin_anew(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path / "dump")
    with folder.items("a.json") as items:
        for n in range(3):
            items.add({"n": n})
        items.restart()
        items.add({"n": 9})
        assert items.count == 1
    assert json.loads((tmp_path / "dump/a.json").read_text()) == {"items": [{"n": 9}]}


def test_a_list_that_fails_is_whole_json_all_the_same(tmp_path: Path) -> None:
    def fail() -> None:
        with DumpFolder(tmp_path / "dump").items("a.json") as items:
            items.add(1)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert json.loads((tmp_path / "dump/a.json").read_text()) == {"items": [1]}


def test_a_umask_opens_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = DumpFolder(tmp_path / "dump")
        folder.write("a/b.txt", b"")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, folder.path / "a", folder.path / "a/b.txt")]
    assert modes == [0o700, 0o700, 0o600]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path / "dump")
    folder.write("a", b"1")
    with pytest.raises(HostError):
        folder.write("a", b"2")
    with pytest.raises(HostError):
        DumpFolder(tmp_path / "dump")
    (tmp_path / "dump.tar.gz").write_bytes(b"mine")
    with pytest.raises(HostError):
        folder.pack()
    assert (tmp_path / "dump.tar.gz").read_bytes() == b"mine"
