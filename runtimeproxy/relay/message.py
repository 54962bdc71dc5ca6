"""Keep the bytes of a message as they came, and decompress its content.

The bytes are kept in parts of a bounded size, so that megabytes are neither copied nor moved at once. A part takes payloads
until it has `PART` bytes, so that a message in one-byte frames is not a million parts. Content may be compressed with gzip or
deflate; decompression stops at a size limit.

Source: gRPC's PROTOCOL-HTTP2.md and its compression document.
"""

import zlib
from collections.abc import Sequence
from typing import Final

from lading.http2.messages import PREFIX_LENGTH, GrpcStatus, parse_prefix, too_large

# A large message is copied this many bytes at a time, because a C call holds the GIL until it returns.
PART: Final = 64 << 10

# A compressed message may have this many members. Clients write one; each further member costs a copy of the bytes after it.
_MAX_MEMBERS: Final = 64


def joined(pieces: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """Return `b"".join(pieces)`. For a megabyte or more it copies in parts, so that other threads run meanwhile."""
    if sum(map(len, pieces)) < 1 << 20:
        return b"".join(pieces)
    views = (memoryview(piece) for piece in pieces)
    return b"".join([bytes(view[at : at + PART]) for view in views for at in range(0, len(view), PART)])


class Received:
    __slots__ = ("_size", "parts")

    def __init__(self) -> None:
        self.parts: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, payload: bytes) -> None:
        if not self.parts or len(self.parts[-1]) >= PART:
            self.parts.append(bytearray())
        self.parts[-1] += payload
        self._size += len(payload)

    def prefix(self) -> tuple[bool, int] | None:
        """Return (compressed, length of the message after the prefix), or None while the prefix is incomplete. A prefix is
        never split between parts."""
        return parse_prefix(self.parts[0]) if self._size >= PREFIX_LENGTH else None

    def cut(self, size: int) -> bytes:
        """Remove and return the bytes after the first `size`. They came with the last payload."""
        behind = bytearray()
        while self.parts and self._size - len(self.parts[-1]) >= size:
            last = self.parts.pop()
            self._size -= len(last)
            behind = last + behind
        if excess := self._size - size:
            behind = self.parts[-1][-excess:] + behind
            del self.parts[-1][-excess:]
            self._size = size
        return bytes(behind)


class UnreadableMessageError(Exception):
    """Report an unreadable message: of unknown compression, damaged, or larger than allowed when decompressed."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def unpack(buffer: bytes | bytearray, encoding: bytes, limit: int) -> bytes:
    """Return the decompressed content of the first message in `buffer`. Decompression fails beyond `limit` bytes."""
    if len(buffer) < PREFIX_LENGTH:
        raise UnreadableMessageError(GrpcStatus.INTERNAL, "there is no message")
    length = parse_prefix(buffer)[1]
    return unpack_parts([buffer[: PREFIX_LENGTH + length]], encoding, limit)


def unpack_parts(parts: Sequence[bytes | bytearray], encoding: bytes, limit: int) -> bytes:
    """Return the decompressed content of one whole message. The first of `parts` contains the whole prefix."""
    compressed, _ = parse_prefix(parts[0])
    content = joined([memoryview(parts[0])[PREFIX_LENGTH:], *parts[1:]])
    if not compressed:
        return content
    if encoding not in (b"gzip", b"deflate"):
        name = encoding.decode("ascii", "backslashreplace")
        raise UnreadableMessageError(GrpcStatus.UNIMPLEMENTED, f'Decompressor is not installed for grpc-encoding "{name}"')
    return _inflated(content, zlib.MAX_WBITS | 16 if encoding == b"gzip" else zlib.MAX_WBITS, limit)


def _inflated(content: bytes, window_bits: int, limit: int) -> bytes:
    """Decompress all members of the stream: Go's gzip reads on after the first, so the proxy must check those bytes too."""
    message = b""
    for _ in range(_MAX_MEMBERS):
        if not content:
            return message
        inflater = zlib.decompressobj(window_bits)
        try:
            message += inflater.decompress(content, limit + 1 - len(message))
        except zlib.error as e:
            raise UnreadableMessageError(GrpcStatus.INTERNAL, f"cannot decompress the request: {e}") from e
        if len(message) > limit:
            raise UnreadableMessageError(GrpcStatus.RESOURCE_EXHAUSTED, too_large(len(message), limit))
        if not inflater.eof:
            raise UnreadableMessageError(GrpcStatus.INTERNAL, "cannot decompress the request: it ends early")
        content = inflater.unused_data
    raise UnreadableMessageError(GrpcStatus.INTERNAL, f"cannot decompress the request: over {_MAX_MEMBERS} gzip members")
