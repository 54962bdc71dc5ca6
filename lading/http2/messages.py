"""Encode and parse gRPC over HTTP/2: the length-prefixed message, timeouts, and the fields that end a call.

Source: gRPC's PROTOCOL-HTTP2.md (Length-Prefixed-Message, Timeout, Status-Message).
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from lading.http2.headers import Fields

PREFIX_LENGTH: Final = 5
_PREFIX: Final = Struct(">BL")
# A longer grpc-message would run into C-core's default limit for all metadata of a call (8 KiB).
MAX_STATUS_MESSAGE: Final = 4096
_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


# Every reply begins with these fields.
REPLY_BEGINS: Final[Fields] = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class GrpcStatus(IntEnum):
    """Name the status codes of gRPC (google.rpc.Code)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def parse_prefix(buffer: bytes | bytearray) -> tuple[bool, int]:
    """Return (compressed, length of the message after the prefix)."""
    flag, length = _PREFIX.unpack_from(buffer)
    return flag == 1, length


def prefixed(message: bytes) -> bytes:
    """Return the message with its prefix, uncompressed, which is allowed for each grpc-encoding that the call announced."""
    return prefix_of(message) + message


def prefix_of(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message))


def too_large(length: int, limit: int) -> str:
    # grpc-go's text is used, because a client gets it for the same message without the proxy.
    return f"grpc: received message larger than max ({length} vs. {limit})"


def parse_timeout(text: bytes) -> float | None:
    """Return grpc-timeout in seconds; None for a malformed one, which the runtime refuses."""
    unit = _TIMEOUT_UNITS.get(chr(text[-1])) if text else None
    digits = text[:-1]
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


def trailers_only(status: int, message: str) -> Fields:
    """Return the fields of an answer that is only an error."""
    return (
        *REPLY_BEGINS,
        (b"grpc-status", str(int(status)).encode()),
        (b"grpc-message", _percent_encoded(message)),
    )


def trailers(status: int, message: str) -> Fields:
    """Return the fields that end a call whose reply had begun."""
    return trailers_only(status, message)[2:]


def parse_status(fields: Fields) -> int:
    """Return grpc-status of a reply's last block; UNKNOWN if it is missing or not a number."""
    for name, value in fields:
        if name == b"grpc-status":
            return int(value) if value.isdigit() and len(value) < 4 else GrpcStatus.UNKNOWN
    return GrpcStatus.UNKNOWN


def _percent_encoded(text: str) -> bytes:
    out = bytearray()
    for char in text:
        data = char.encode("utf-8", "replace")
        piece = data if len(data) == 1 and 0x20 <= data[0] <= 0x7E and char != "%" else b"".join(b"%%%02X" % b for b in data)
        if len(out) + len(piece) > MAX_STATUS_MESSAGE - 3:
            return bytes(out) + b"..."
        out += piece
    return bytes(out)
