"""Cut the byte stream of NRI's socket into pieces of its two logical connections, and these into ttrpc messages; write both.

On connection 1 the runtime calls the plugin, on connection 2 the plugin calls the runtime. A piece is not a message: each
logical connection is a separate byte stream. A piece of any size is passed on as it arrives.

NRI uses calls with one request and one response. Refused are a message larger than `MAX_RECEIVED`, and the message types of
streaming calls. Sent messages keep ttrpc's limit (`MAX_SENT`), which containerd enforces as a reader. Received messages may be
larger, because containerd 1.7 sends a list of pods of any size.

Source: containerd/nri, pkg/net/multiplex (`u32 connection | u32 length`, big-endian); containerd/ttrpc, PROTOCOL.md (`u32
length | u32 stream | u8 type | u8 flags`, big-endian) and channel.go.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from hooks.frontends.nri.sieve import MalformedError, Sieve

# Maximum bytes of a message, without its header. The socket carries at most a GiB in the 2 s after which a runtime drops a
# plugin that does not answer.
MAX_SENT: Final = 4 << 20
MAX_RECEIVED: Final = 1 << 30
_HEADER: Final = Struct(">IIBB")
PLUGIN: Final = 1  # connection on which the plugin answers
RUNTIME: Final = 2  # connection on which the runtime answers

_PIECE: Final = Struct(">II")
# The runtime reads a message's header into a buffer of 4,096 bytes, so a message's first piece must not be larger. The rest of
# the message is one piece of any size, because the runtime queues at most 256 unread pieces.
_FIRST: Final = 4096


class MessageKind(IntEnum):
    REQUEST = 1
    RESPONSE = 2


class TtrpcMessage(NamedTuple):
    stream: int
    kind: MessageKind
    body: bytes  # serialized TtrpcRequest or TtrpcResponse


class Arrived(NamedTuple):
    stream: int
    kind: MessageKind
    body: Sieve  # was fed the whole body


class MessageReader:
    """Assemble messages from bytes. `sieve` returns a new sieve for each message."""

    def __init__(self, sieve: Callable[[], Sieve]) -> None:
        self._sieve = sieve
        self._header = bytearray()
        self._message: Arrived | None = None
        self._left = 0  # bytes of the current message that have not arrived

    @property
    def is_idle(self) -> bool:
        """Return whether no part of a message has arrived without its end."""
        return self._message is None and not self._header

    def feed(self, data: memoryview) -> Iterator[Arrived]:
        """Yield the messages that these bytes complete. Raise MalformedError."""
        while data or self._message:
            if self._message is None:
                missing = _HEADER.size - len(self._header)
                self._header += data[:missing]
                data = data[missing:]
                if len(self._header) == _HEADER.size:
                    self._begin()
            else:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                self._message.body.feed(part)
                if self._left:
                    return
                whole, self._message = self._message, None
                yield whole

    def _begin(self) -> None:
        self._left, stream, kind, _ = _HEADER.unpack(self._header)
        self._header.clear()
        if self._left > MAX_RECEIVED:
            raise MalformedError(f"cannot read a message of {self._left} bytes: {MAX_RECEIVED} are the most")
        if kind not in MessageKind.__members__.values():
            raise MalformedError(f"cannot read a ttrpc message of type {kind}: NRI has requests and responses only")
        self._message = Arrived(stream, MessageKind(kind), self._sieve())


def render_message(message: TtrpcMessage) -> bytes:
    return _HEADER.pack(len(message.body), message.stream, message.kind, 0) + message.body


class PieceReader:
    """Split the socket's bytes into those of each logical connection."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0  # bytes of the current piece that have not arrived

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (connection, bytes) for each piece, or for the arrived part of a piece."""
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                yield self._connection, part
            else:
                missing = _PIECE.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _PIECE.size:
                    self._connection, self._left = _PIECE.unpack(self._header)
                    self._header.clear()


def render_pieces(connection: int, message: bytes) -> bytes:
    """Return the bytes of a message on a connection: a piece of up to 4,096 bytes, and a second piece with the rest."""
    parts = (message[:_FIRST], message[_FIRST:])
    return b"".join(_PIECE.pack(connection, len(part)) + part for part in parts if part)
