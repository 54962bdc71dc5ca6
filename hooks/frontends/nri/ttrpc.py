"""Cut the byte stream of one logical connection into ttrpc messages, and write them.

NRI uses calls with one request and one response. Refused: a message over ttrpc's limit, and the kinds of messages that
streaming calls have.

Source: containerd/ttrpc, PROTOCOL.md (`u32 length | u32 stream | u8 type | u8 flags`, big-endian).
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from hooks.frontends.nri.mux import MalformedError

LARGEST: Final = 4 << 20  # of a message, without its header
_HEADER: Final = Struct(">IIBB")


class Kind(IntEnum):
    REQUEST = 1
    RESPONSE = 2


class Message(NamedTuple):
    stream: int
    kind: Kind
    body: bytes  # of a TtrpcRequest or TtrpcResponse


class MessageReader:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete now. Raise MalformedError."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(self._rest)
            if length > LARGEST:
                raise MalformedError(f"cannot read a message of {length} bytes: ttrpc allows {LARGEST}")
            if kind not in Kind.__members__.values():
                raise MalformedError(f"cannot read a ttrpc message of type {kind}: NRI has requests and responses only")
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield Message(stream, Kind(kind), body)


def render_message(message: Message) -> bytes:
    return _HEADER.pack(len(message.body), message.stream, message.kind, 0) + message.body
