"""Read the SONAME of a shared library, and whether a library is for another kind of processor than this process.

Only the needed bytes are read, each within a bound, because the files come from a driver root. A file that is no ELF file of
this processor has no SONAME.

Source: elf(5); System V ABI, "Dynamic Section" (DT_SONAME, DT_STRTAB).
"""

import os
import re
import struct
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"\x7fELF"
_CLASS_64: Final = 2
_KIND: Final = slice(18, 20)  # e_machine
_HEADER_BYTES: Final = 64
_PROGRAM_HEADER_BYTES: Final = 56
_MAX_PROGRAM_HEADERS: Final = 64  # a library has about ten
_MAX_DYNAMIC_BYTES: Final = 1 << 14  # 1,024 entries; libcuda has about thirty
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_NAME_BYTES: Final = 128
_NAME: Final = re.compile(rb"([A-Za-z0-9_+-][A-Za-z0-9_.+-]*)\0")


def is_library(path: Path) -> bool:
    """Return whether this process could load the file: an ELF file of its processor and word size."""
    return _read_kind(path) == _own_kind()


def is_foreign(path: Path) -> bool:
    """Return whether the file is an ELF file of another processor or word size."""
    return _read_kind(path) not in {b"", _own_kind()}


def read_soname(path: Path) -> str:
    """Return the SONAME; empty if the file has none or cannot be read."""
    if not is_library(path):
        return ""
    try:
        with path.open("rb") as file:
            return _read_soname(file)
    except (OSError, struct.error):  # a file that is cut off ends within a header
        return ""


@cache
def _own_kind() -> bytes:
    return _read_kind(Path(sys.executable).resolve())


def _read_kind(path: Path) -> bytes:
    """Return the class, byte order and processor of an ELF file; empty for any other file."""
    try:
        with path.open("rb") as file:
            header = file.read(_KIND.stop)
    except OSError:
        return b""
    return header[4:6] + header[_KIND] if len(header) == _KIND.stop and header.startswith(_MAGIC) else b""


def _read_soname(file: BinaryIO) -> str:
    header = file.read(_HEADER_BYTES)
    if header[4] != _CLASS_64:
        return ""
    order = "<" if header[5] == 1 else ">"
    (at,) = struct.unpack_from(f"{order}Q", header, 32)
    size, count = struct.unpack_from(f"{order}HH", header, 54)
    if size != _PROGRAM_HEADER_BYTES or count > _MAX_PROGRAM_HEADERS:
        return ""
    loads, dynamic = [], b""
    for number in range(count):
        kind, _, offset, address, _, file_bytes = struct.unpack_from(f"{order}IIQQQQ", _read_at(file, at + number * size, size))
        if kind == _PT_LOAD:
            loads.append((address, offset, file_bytes))
        elif kind == _PT_DYNAMIC:
            dynamic = _read_at(file, offset, min(file_bytes, _MAX_DYNAMIC_BYTES))
    values: dict[int, int] = {}
    for tag, value in struct.iter_unpack(f"{order}qQ", dynamic[: len(dynamic) // 16 * 16]):
        if tag == _DT_NULL:
            break
        values.setdefault(tag, value)
    if not values.keys() >= {_DT_STRTAB, _DT_SONAME}:
        return ""
    wanted = values[_DT_STRTAB] + values[_DT_SONAME]
    for address, offset, file_bytes in loads:
        if address <= wanted < address + file_bytes:
            match = _NAME.match(_read_at(file, offset + wanted - address, _MAX_NAME_BYTES))
            return match[1].decode() if match else ""
    return ""


def _read_at(file: BinaryIO, offset: int, count: int) -> bytes:
    try:
        return os.pread(file.fileno(), count, offset)
    except (OSError, OverflowError):  # an offset beyond what a file can have
        return b""
