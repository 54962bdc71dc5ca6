"""gRPC over HTTP/2: the length-prefixed message, its compression, timeouts, and the trailers-only answer.

Source: gRPC's PROTOCOL-HTTP2.md (Length-Prefixed-Message, Timeout, Status-Message) and its compression document.
"""

import zlib
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

from runtimeproxy.relay.headers import Fields

PREFIX_LENGTH: Final = 5
_PREFIX: Final = Struct(">BL")
# A longer grpc-message would run into C-core's default limit for all metadata of a call (8 KiB).
MAX_STATUS_MESSAGE: Final = 4096
# Of one compressed message. Clients write one; each more costs a copy of what is behind it.
_MAX_MEMBERS: Final = 64
# Bytes of a large message that are copied at a time: a C call holds the interpreter until it returns.
PART: Final = 64 << 10
_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Status(IntEnum):
    """google.rpc.Code, those that the proxy itself answers with."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class UnreadableMessageError(Exception):
    """A message whose content can not be had: an unknown compression, damaged, or larger than allowed when unpacked."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse_prefix(buffer: bytes | bytearray) -> tuple[bool, int]:
    """(compressed, length of the message behind the prefix)."""
    flag, length = _PREFIX.unpack_from(buffer)
    return flag == 1, length


def prefixed(message: bytes) -> bytes:
    """The message uncompressed with its prefix; allowed whatever grpc-encoding the call announced."""
    return prefix_of(message) + message


def prefix_of(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message))


def joined(pieces: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """`b"".join`, which lets other threads run while it copies a megabyte or more, if all that it is given is `bytes`."""
    if sum(map(len, pieces)) < 1 << 20:
        return b"".join(pieces)
    views = (memoryview(piece) for piece in pieces)
    return b"".join([bytes(view[at : at + PART]) for view in views for at in range(0, len(view), PART)])


def unpack(buffer: bytes | bytearray, encoding: bytes, limit: int) -> bytes:
    """The content of the first message in `buffer`, decompressed, at most `limit` bytes (a compression bomb ends there)."""
    if len(buffer) < PREFIX_LENGTH:
        raise UnreadableMessageError(Status.INTERNAL, "there is no message")
    length = parse_prefix(buffer)[1]
    return unpack_parts([buffer[: PREFIX_LENGTH + length]], encoding, limit)


def unpack_parts(parts: Sequence[bytes | bytearray], encoding: bytes, limit: int) -> bytes:
    """The same of one whole message in parts, of which the first has its prefix whole."""
    compressed, _ = parse_prefix(parts[0])
    content = joined([memoryview(parts[0])[PREFIX_LENGTH:], *parts[1:]])
    if not compressed:
        return content
    if encoding not in (b"gzip", b"deflate"):
        name = encoding.decode("ascii", "backslashreplace")
        raise UnreadableMessageError(Status.UNIMPLEMENTED, f'Decompressor is not installed for grpc-encoding "{name}"')
    return _inflated(content, zlib.MAX_WBITS | 16 if encoding == b"gzip" else zlib.MAX_WBITS, limit)


def _inflated(content: bytes, window_bits: int, limit: int) -> bytes:
    """Every member of the stream, because Go's gzip reads on behind the first: what hides there must be seen here too."""
    message = b""
    for _ in range(_MAX_MEMBERS):
        if not content:
            return message
        inflater = zlib.decompressobj(window_bits)
        try:
            message += inflater.decompress(content, limit + 1 - len(message))
        except zlib.error as e:
            raise UnreadableMessageError(Status.INTERNAL, f"cannot decompress the request: {e}") from e
        if len(message) > limit:
            raise UnreadableMessageError(Status.RESOURCE_EXHAUSTED, too_large(len(message), limit))
        if not inflater.eof:
            raise UnreadableMessageError(Status.INTERNAL, "cannot decompress the request: it ends early")
        content = inflater.unused_data
    raise UnreadableMessageError(Status.INTERNAL, f"cannot decompress the request: over {_MAX_MEMBERS} gzip members")


def too_large(length: int, limit: int) -> str:
    # The words of grpc-go, which says the same of the same message when nothing is in between.
    return f"grpc: received message larger than max ({length} vs. {limit})"


def parse_timeout(text: bytes) -> float | None:
    """grpc-timeout in seconds; None for what is not one, which is the runtime's to refuse."""
    unit = _TIMEOUT_UNITS.get(chr(text[-1])) if text else None
    digits = text[:-1]
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


def trailers_only(status: int, message: str) -> Fields:
    """The fields of an answer that is an error and nothing else."""
    return (
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", str(int(status)).encode()),
        (b"grpc-message", _percent_encoded(message)),
    )


def trailers(status: int, message: str) -> Fields:
    """The fields that end a call whose reply had begun."""
    return trailers_only(status, message)[2:]


def parse_status(fields: Fields) -> int:
    """grpc-status of a reply's last block; UNKNOWN where there is none that is a number."""
    for name, value in fields:
        if name == b"grpc-status":
            return int(value) if value.isdigit() and len(value) < 4 else Status.UNKNOWN
    return Status.UNKNOWN


def _percent_encoded(text: str) -> bytes:
    out = bytearray()
    for char in text:
        data = char.encode("utf-8", "replace")
        piece = data if len(data) == 1 and 0x20 <= data[0] <= 0x7E and char != "%" else b"".join(b"%%%02X" % b for b in data)
        if len(out) + len(piece) > MAX_STATUS_MESSAGE - 3:
            return bytes(out) + b"..."
        out += piece
    return bytes(out)
