"""Parse the cache of glibc's dynamic loader, /etc/ld.so.cache, as bytes: the names of libraries and their paths.

The file is read, and not asked through `ldconfig -p`, because in a container this program's loader is the image's, and the
cache that counts is the host's. Both forms are understood: the present one, and the old one with the present one appended
(`ldconfig -c compat`, the default before glibc 2.32). An old cache alone has no entry here. Entries for certain processors only
(glibc-hwcaps, legacy hwcaps) are left out, as each has a general one beside it. All offsets are checked.

Source: glibc, sysdeps/generic/dl-cache.h and elf/cache.c.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

MAX_BYTES: Final = 16 << 20  # a host with 10,000 libraries has about 1 MiB
_OLD: Final = b"ld.so-1.7.0"
_OLD_HEADER: Final = struct.Struct("<11sxI")
_OLD_ENTRY_BYTES: Final = 12
_NEW: Final = b"glibc-ld.so.cache1.1"
_NEW_HEADER: Final = struct.Struct("<20sIIB3xI12x")  # magic and version, entries, bytes of strings, byte order, extensions
_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, offset of the name, offset of the path, OS version, processor features
_BIG_ENDIAN: Final = 3
_ELF: Final = 1  # the bit that glibc's kinds of ELF libraries have in common
_MAX_PATH_BYTES: Final = 4096


class CachedLibrary(NamedTuple):
    name: str  # SONAME of the library: libcuda.so.1
    path: str


def read_cache(path: Path) -> tuple[CachedLibrary, ...]:
    """Return the entries of a cache; none if the file is missing, too large, or no cache. An unchanged file is read once."""
    try:
        status = path.stat()
        return _read(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        return ()


@lru_cache(maxsize=4)
def _read(path: Path, _state: tuple[int, ...]) -> tuple[CachedLibrary, ...]:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    return tuple(parse_cache(data)) if len(data) <= MAX_BYTES else ()


def parse_cache(data: bytes) -> Iterator[CachedLibrary]:
    """Yield the valid entries, in the cache's order."""
    if data.startswith(_OLD) and len(data) >= _OLD_HEADER.size:
        _, count = _OLD_HEADER.unpack_from(data)
        end = _OLD_HEADER.size + count * _OLD_ENTRY_BYTES
        data = data[end + -end % 8 :]  # the appended cache is aligned to 8 bytes, and its offsets start with it
    if not data.startswith(_NEW) or len(data) < _NEW_HEADER.size:
        return
    _, count, _, order, _ = _NEW_HEADER.unpack_from(data)
    if order == _BIG_ENDIAN:
        return
    count = min(count, (len(data) - _NEW_HEADER.size) // _ENTRY.size)
    for flags, name_at, path_at, _, features in _ENTRY.iter_unpack(
        data[_NEW_HEADER.size : _NEW_HEADER.size + count * _ENTRY.size]
    ):
        if flags & _ELF and not features:
            name, path = _text(data, name_at), _text(data, path_at)
            if name and path.startswith("/"):
                yield CachedLibrary(name, path)


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + _MAX_PATH_BYTES)
    return data[offset:end].decode(errors="surrogateescape") if end >= 0 else ""
