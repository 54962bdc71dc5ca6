"""Test the parser with caches that the machine's own ldconfig writes, in both forms, and with damaged ones."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.loader_cache import MAX_BYTES, CachedLibrary, parse_cache, read_cache
from tests.fakes.needs import need
from tests.fakes.shared_objects import make_shared_object

LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin") or ""


def write_cache(folder: Path, form: str, *libraries: str) -> Path:
    """Have ldconfig write a cache of a folder with these libraries."""
    need(bool(LDCONFIG), "glibc's ldconfig")
    lib = folder / "lib"
    lib.mkdir(parents=True, exist_ok=True)
    for soname in libraries:
        (lib / f"{soname}.580.1").write_bytes(make_shared_object(soname))
    config, cache = folder / "ld.so.conf", folder / "ld.so.cache"
    config.write_text(f"{lib}\n")
    subprocess.run([LDCONFIG, "-f", str(config), "-C", str(cache), "-c", form], check=True, capture_output=True)
    return cache


@pytest.mark.parametrize("form", ["new", "compat"])
def test_a_cache_of_ldconfig(tmp_path: Path, form: str) -> None:
    cache = write_cache(tmp_path, form, "libcuda.so.1", "libnvidia-ml.so.1")
    assert cache.read_bytes().startswith(b"ld.so-1.7.0" if form == "compat" else b"glibc-ld.so.cache1.1")
    entries = read_cache(cache)
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        assert CachedLibrary(soname, f"{tmp_path}/lib/{soname}") in entries


def test_an_old_cache_alone_has_nothing(tmp_path: Path) -> None:
    assert read_cache(write_cache(tmp_path, "old", "libcuda.so.1")) == ()


def test_an_entry_for_certain_processors_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "lib/glibc-hwcaps/x86-64-v2"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libonly.so.1"):
        (folder / name).write_bytes(make_shared_object(name))
    cache = write_cache(tmp_path, "new", "libcuda.so.1")
    paths = [entry.path for entry in read_cache(cache) if str(tmp_path) in entry.path]
    assert paths == [f"{tmp_path}/lib/libcuda.so.1"]
    assert b"glibc-hwcaps" in cache.read_bytes()


def test_a_changed_cache_is_read_again(tmp_path: Path) -> None:
    cache = write_cache(tmp_path, "new", "libcuda.so.1")
    before = read_cache(cache)
    assert read_cache(cache) is before
    write_cache(tmp_path, "new", "libnvidia-ml.so.1")
    assert len(read_cache(cache)) == len(before) + 1


def test_a_file_that_is_no_cache_has_no_entry(tmp_path: Path) -> None:
    assert read_cache(tmp_path / "absent") == ()
    assert read_cache(tmp_path) == ()
    large = tmp_path / "large"
    large.write_bytes(made(("libcuda.so.1", "/lib/libcuda.so.1")))
    assert len(read_cache(large)) == 1
    with large.open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    assert read_cache(large) == ()


def made(*entries: tuple[str, str], flags: int = 0x0303, order: int = 2, count: int | None = None, features: int = 0) -> bytes:
    """Return a cache as glibc's elf/cache.c writes it, with perhaps another number of entries in its header."""
    base, strings, rows = 48 + 24 * len(entries), b"", b""
    for name, path in entries:
        rows += struct.pack("<iIIIQ", flags, base + len(strings), base + len(strings) + len(name) + 1, 0, features)
        strings += f"{name}\0{path}\0".encode()
    header = struct.pack(
        "<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries) if count is None else count, len(strings), order, 0
    )
    return header + rows + strings


ENTRY = ("libcuda.so.1", "/usr/lib64/libcuda.so.1")


def test_only_whole_entries_of_elf_libraries_count() -> None:
    assert [*parse_cache(made(ENTRY))] == [ENTRY]
    assert [*parse_cache(made(ENTRY, order=0))] == [ENTRY]  # glibc before 2.33 left this byte empty
    assert [*parse_cache(made(ENTRY, count=2**32 - 1))][:1] == [ENTRY]
    for other in (made(ENTRY, order=3), made(ENTRY, flags=0x0300), made(ENTRY, features=1 << 62), made(ENTRY)[:-1]):
        assert [*parse_cache(other)] == []
    assert [*parse_cache(made(("libcuda.so.1", "libcuda.so.1")))] == []  # a relative path


@given(st.binary(max_size=200), st.integers(0, 120), st.sampled_from([b"", b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"]))
def test_damaged_bytes_are_no_error(noise: bytes, cut: int, magic: bytes) -> None:
    for data in (magic + noise, made(ENTRY)[:cut] + noise):
        assert all(path.startswith("/") for _, path in parse_cache(data))
