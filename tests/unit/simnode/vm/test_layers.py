import fcntl
import os
from pathlib import Path

import pytest

from simnode.vm.layers import cached, hash_files, remove_older


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_text("one")
    return folder


class Builds:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, out: Path) -> None:
        self.count += 1
        (out / "result").write_text(str(self.count))


def test_what_is_in_the_cache_is_not_built_again(tmp_path: Path, source: Path) -> None:
    build = Builds()
    first, second = (cached(tmp_path, "disk", [source], build) for _ in range(2))
    assert first == second
    assert (first / "result").read_text() == "1"


def test_a_changed_source_needs_another_build(tmp_path: Path, source: Path) -> None:
    build = Builds()
    first = cached(tmp_path, "disk", [source], build)
    (source / "file").write_text("two")
    assert cached(tmp_path, "disk", [source], build) != first
    assert build.count == 2


def test_a_build_that_fails_is_not_in_the_cache(tmp_path: Path, source: Path) -> None:
    def fail(out: Path) -> None:
        (out / "half").touch()
        raise RuntimeError("half done")

    with pytest.raises(RuntimeError, match="half done"):
        cached(tmp_path, "disk", [source], fail)
    result = cached(tmp_path, "disk", [source], Builds())
    assert [path.name for path in result.iterdir()] == ["result"]


def test_older_folders_of_a_name_are_removed_unless_they_are_locked(tmp_path: Path) -> None:
    names = ("disk-a1", "disk-b2", "disk-new-c3", "disk-d4")
    old, locked, other, new = (tmp_path / name for name in names)
    for folder in (old, locked, other, new):
        folder.mkdir()
    descriptor = os.open(locked, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    remove_older(new)
    assert [folder.exists() for folder in (old, locked, other, new)] == [False, True, True, True]
    os.close(descriptor)


def test_the_names_of_files_count(source: Path) -> None:
    before = hash_files([source])
    (source / "file").rename(source / "other")
    assert hash_files([source]) != before


def test_the_place_of_the_sources_does_not_count(tmp_path: Path, source: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = hash_files([source])
    assert hash_files([source.rename(elsewhere / "source")]) == before
