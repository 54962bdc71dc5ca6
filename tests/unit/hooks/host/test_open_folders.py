"""Test folders that containers can write to."""

import asyncio
import os
from pathlib import Path

import pytest

from hooks.host.open_folders import make_folder, remove_folder
from lading.errors import HostError


def removed(folder: Path, *, systemd_run: str = "/nonexistent") -> bool:
    asyncio.run(remove_folder(folder, systemd_run=systemd_run))
    return not folder.exists()


def as_systemd(folder: Path) -> str:
    """Return a program that runs what follows `--`, as systemd-run does."""
    program = folder / "systemd-run"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_few_files_are_removed_here(tmp_path: Path) -> None:
    folder = tmp_path / "few"
    assert removed(folder)
    folder.mkdir()
    (folder / "region").touch()
    (folder / "lock").symlink_to(tmp_path)
    assert removed(folder)
    assert tmp_path.is_dir()


@pytest.mark.parametrize("many", [False, True])
def test_folders_and_many_files_are_left_to_systemd(tmp_path: Path, many: bool) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    for number in range(100 if many else 0):
        (folder / f"{number}").touch()
    if not many:
        (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(HostError, match="cannot start /nonexistent"):
        removed(folder)
    assert removed(folder, systemd_run=as_systemd(tmp_path))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "kept")
    with pytest.raises(HostError, match="another user made it"):
        make_folder(link, 0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(HostError, match=f"cannot use {folder}"):
        make_folder(folder, 0o700)
