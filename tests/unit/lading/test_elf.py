import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lading.elf import is_foreign, is_library, read_soname
from tests.fakes.shared_objects import make_shared_object

ANOTHER_PROCESSOR = 0xF3  # EM_RISCV


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-glcore.so.580.159.04", ""])
def test_the_soname_of_a_real_library(tmp_path: Path, soname: str) -> None:
    file = write(tmp_path / "file", make_shared_object(soname))
    assert read_soname(file) == soname
    assert (is_library(file), is_foreign(file)) == (True, False)


@pytest.mark.parametrize(
    "content", [b"", b"simulated libcuda\n", b"\x7fELF", make_shared_object("libx.so.1")[:200], b"\x7fELF\2\1" + bytes(4)]
)
def test_a_file_that_is_no_whole_library_has_no_soname(tmp_path: Path, content: bytes) -> None:
    assert read_soname(write(tmp_path / "file", content)) == ""


def test_libraries_of_another_processor_or_word_size_are_foreign(tmp_path: Path) -> None:
    native = make_shared_object("libx.so.1")
    for content in (make_shared_object("libx.so.1", processor=ANOTHER_PROCESSOR), native[:4] + b"\1" + native[5:]):
        file = write(tmp_path / "file", content)
        assert (is_library(file), is_foreign(file), read_soname(file)) == (False, True, "")
    text = write(tmp_path / "text", b"no ELF file, but long enough for a header")
    for file in (text, tmp_path, tmp_path / "absent"):
        assert (is_library(file), is_foreign(file), read_soname(file)) == (False, False, "")


@pytest.mark.parametrize("name", ["../libx.so.1", "a/b", "", "x" * 200, "é"])
def test_a_soname_that_is_no_file_name_is_none(tmp_path: Path, name: str) -> None:
    written = make_shared_object("x" * 300).replace(b"x" * 300 + b"\0", name.encode().ljust(300, b"\0") + b"\0")
    assert read_soname(write(tmp_path / "file", written)) == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 255)), max_size=8), offset=st.integers(0, 2**64 - 1))
def test_a_damaged_library_is_no_error(tmp_path: Path, changes: list[tuple[int, int]], offset: int) -> None:
    content = bytearray(make_shared_object("libx.so.1"))
    content[32:40] = struct.pack("<Q", offset) if offset % 3 == 0 else content[32:40]
    for at, value in changes:
        content[6 + at] = value
    result = read_soname(write(tmp_path / "file", bytes(content)))
    assert "/" not in result
