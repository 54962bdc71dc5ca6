"""Cut the stream of NRI's socket into pieces of its two logical connections, and write such pieces.

On connection 1 the runtime calls the plugin, on connection 2 the plugin calls the runtime. A piece is no message: each logical
connection is a byte stream of its own (`ttrpc`). Refused: a piece that is larger than a runtime sends.

Source: containerd/nri, pkg/net/multiplex (`u32 connection | u32 length`, big-endian).
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from lading.errors import LadingError

PLUGIN: Final = 1  # the plugin answers
RUNTIME: Final = 2  # the runtime answers

_HEADER: Final = Struct(">II")
_LARGEST: Final = (4 << 20) + 10  # a ttrpc message with its header
# The runtime reads headers of messages by way of a buffer of this size, and a larger piece does not fit into it. The rest of a
# message may come as one piece of any size, and should: at most 256 pieces may wait to be read.
_FIRST: Final = 4096


class MalformedError(LadingError):
    """The other side sent what is not NRI: the connection cannot be used any more."""


class PieceReader:
    """Bytes in, pieces out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (connection, bytes) of each piece that is complete now. Raise MalformedError."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            connection, length = _HEADER.unpack_from(self._rest)
            if length > _LARGEST:
                raise MalformedError(f"cannot read a piece of {length} bytes: a runtime sends {_LARGEST} at most")
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            piece = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield connection, piece


def render_pieces(connection: int, message: bytes) -> bytes:
    """Return a message on one of the connections, in pieces as the runtime can read them."""
    parts = (message[:_FIRST], message[_FIRST:])
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts if part)
