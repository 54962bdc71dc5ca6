"""Decode and write the header blocks of one direction, so that both ends' header tables stay equal (RFC 7541, RFC 9113 4.3).

Both ends keep one dynamic table per direction, and every block may change it. So every block is decoded, in order, and Lading's
own blocks are literals *without indexing*, which change no table. The relay forwards blocks verbatim until it must drop a block
(a late answer on a call that it refused), which would leave the receiver's table behind. From then on the direction is
*re-encoded*: every block is written as literals, and the receiver's table never changes again.

After a receiver shrank its table, the next block that reaches it must begin with the size update (RFC 7541 4.2), also when the
relay writes that block.
"""

from collections.abc import Iterable
from typing import Final

import hpack
from hpack import NeverIndexedHeaderTuple

from lading.http2.frames import ErrorCode, MalformedFrameError

Fields = tuple[tuple[bytes, bytes], ...]

_DEFAULT_TABLE_SIZE: Final = 4096  # RFC 9113 6.5.2
# A decoded block may have this many bytes; encoded it has at most 1 MiB. One encoded byte can be a field that costs a hundred
# in memory, so this is less than grpc-go's default of 16 MiB, which no caller needs. C-core accepts 16 KiB.
MAX_FIELDS_SIZE: Final = 4 << 20
_CACHED_BLOCKS: Final = 64
# Larger blocks, in bytes, are not worth the memory; a block that names table entries has one or two bytes for each field.
CACHED_BLOCK: Final = 64


class HeaderLane:
    """Process the header blocks of one direction of one connection. Not thread-safe."""

    def __init__(self, *, cached_block: int = CACHED_BLOCK) -> None:
        """Create a lane. `cached_block`: maximum bytes of a cached block; more for a trusted peer that repeats literals."""
        self.verbatim = True
        self._cached_block = cached_block
        self._decoder = hpack.Decoder(max_header_list_size=MAX_FIELDS_SIZE)
        # A block of table references has the same fields until the table changes, and replies are such
        # blocks nearly always. This saves most of the time that decoding takes.
        self._cached: dict[bytes, Fields] = {}
        self._owed_size_update: int | None = None
        self._receivers_size = _DEFAULT_TABLE_SIZE  # differs from the sender's once its size updates are not forwarded

    def decode(self, block: bytes) -> Fields:
        """Return the fields of the next block of this direction. Every block must be decoded, in order."""
        cached = self._cached.get(block)
        if cached is not None:
            return cached
        entries = self._decoder.header_table.dynamic_entries
        size, newest = len(entries), entries[0] if entries else None
        try:
            fields: Fields = tuple(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as e:
            raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"header list over {MAX_FIELDS_SIZE} bytes") from e
        except (hpack.HPACKError, UnicodeDecodeError) as e:
            raise MalformedFrameError(ErrorCode.COMPRESSION_ERROR, f"header block: {e!r}") from e
        entries = self._decoder.header_table.dynamic_entries
        resized = bool(block) and block[0] & 0xE0 == 0x20
        if resized or len(entries) != size or (entries[0] if entries else None) is not newest:
            self._cached.clear()
        elif len(block) <= self._cached_block and len(self._cached) < _CACHED_BLOCKS:
            self._cached[bytes(block)] = fields
        return fields

    def passed(self) -> None:
        """Note that a block was forwarded verbatim. It began with a due size update, if any (the decoder insists)."""
        self._owed_size_update = None
        self._receivers_size = self._decoder.header_table_size

    def render(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encode a block that changes no table, to be sent in this direction."""
        out = bytearray()
        if self._owed_size_update is not None:
            out += _integer(self._owed_size_update, 5, 0x20)
            self._receivers_size = self._owed_size_update
            self._owed_size_update = None
        for field in fields:
            never = isinstance(field, NeverIndexedHeaderTuple)
            out += b"\x10" if never else b"\x00"
            for text in (field[0], field[1]):
                out += _integer(len(text), 7, 0) + text
        return bytes(out)

    def announce_table_size(self, size: int) -> None:
        """Note SETTINGS_HEADER_TABLE_SIZE of this direction's receiver: a larger table may be used from its arrival on."""
        self._decoder.max_allowed_table_size = max(size, self._decoder.max_allowed_table_size)

    def acknowledge_table_size(self, size: int) -> None:
        """Note that this direction's sender acknowledged the size: its next block obeys it."""
        self._decoder.max_allowed_table_size = size
        self._cached.clear()  # the next block must be decoded, to check that it obeys
        if size < self._receivers_size:
            self._owed_size_update = size if self._owed_size_update is None else min(size, self._owed_size_update)


def _integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    """Encode an integer (RFC 7541 5.1)."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((pattern | value,))
    out = bytearray((pattern | limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
