"""Cut the stream of NRI's socket into pieces of its two logical connections, and write such pieces.

On connection 1 the runtime calls the plugin, on connection 2 the plugin calls the runtime. A piece is no message: each logical
connection is a byte stream of its own (`ttrpc`), and a piece is passed on as it comes, whatever its size.

Source: containerd/nri, pkg/net/multiplex (`u32 connection | u32 length`, big-endian).
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from lading.errors import LadingError

PLUGIN: Final = 1  # the plugin answers
RUNTIME: Final = 2  # the runtime answers

_HEADER: Final = Struct(">II")
# The runtime reads headers of messages by way of a buffer of this size, and a larger piece does not fit into it. The rest of a
# message may come as one piece of any size, and should: at most 256 pieces may wait to be read.
_FIRST: Final = 4096


class MalformedError(LadingError):
    """The other side sent what is not NRI: the connection cannot be used any more."""


class PieceReader:
    """Bytes in, and of each connection its bytes out."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0  # bytes of the piece that have not come

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (connection, bytes) of each piece, or of its part that is there."""
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                yield self._connection, part
            else:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _HEADER.size:
                    self._connection, self._left = _HEADER.unpack(self._header)
                    self._header.clear()


def render_pieces(connection: int, message: bytes) -> bytes:
    """Return a message on one of the connections, in pieces as the runtime can read them."""
    parts = (message[:_FIRST], message[_FIRST:])
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts if part)
