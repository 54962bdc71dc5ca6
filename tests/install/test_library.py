"""The libraries of shares as the wheel has them: for both architectures, glibc 2.17 and newer, the same bytes anywhere."""

import importlib.util
import re
import shutil
import struct
from pathlib import Path
from typing import Final

import pytest

from shares.library import build as library
from tests.fakes.needs import need

MACHINES: Final = {"x86_64": 62, "aarch64": 183}  # e_machine, elf.h
OLDEST: Final = (2, 17)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(importlib.util.find_spec("ziglang") is not None, "ziglang (run: make share-library)")
    folder = tmp_path_factory.mktemp("built")
    library.main([str(folder)])
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("soname", library.SOURCES)
@pytest.mark.parametrize("architecture", MACHINES)
def test_it_needs_an_old_glibc_and_the_drivers_library_by_its_path(built: Path, architecture: str, soname: str) -> None:
    data = (built / architecture / soname).read_bytes()
    assert struct.unpack_from("<H", data, 18) == (MACHINES[architecture],)
    versions = {tuple(map(int, one.split(b"."))) for one in re.findall(rb"\0GLIBC_(2\.[0-9]+)", data)}
    assert versions
    assert max(versions) <= OLDEST
    assert f"\0/.lading/gpu/real/{soname}\0".encode() in data


@pytest.mark.timeout(1800)
def test_the_same_sources_give_the_same_bytes_in_another_folder(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "sources"
    shutil.copytree(library.HERE, elsewhere, ignore=shutil.ignore_patterns("built", "__pycache__"))
    monkeypatch.setattr(library, "HERE", elsewhere)
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    library.main([str(tmp_path / "built")])
    for architecture in MACHINES:
        for soname in library.SOURCES:
            path = Path(architecture, soname)
            assert (tmp_path / "built" / path).read_bytes() == (built / path).read_bytes()
