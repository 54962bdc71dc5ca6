"""Decompress the content of a message that may be compressed with gzip or deflate, up to a size limit.

Source: gRPC's PROTOCOL-HTTP2.md and its compression document.
"""

import zlib
from collections.abc import Sequence
from typing import Final

from lading.http2.messages import PREFIX_LENGTH, GrpcStatus, parse_prefix, too_large
from runtimeproxy.relay.received import joined

# A compressed message may have this many members. Clients write one; each further member costs a copy of the bytes after it.
_MAX_MEMBERS: Final = 64


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
