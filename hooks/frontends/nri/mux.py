"""Cut the byte stream of NRI's socket into pieces of its two logical connections, and write such pieces.

On connection 1 the runtime calls the plugin, on connection 2 the plugin calls the runtime. A piece is not a message: each
logical connection is a separate byte stream (`ttrpc`). A piece of any size is passed on as it arrives.

Source: containerd/nri, pkg/net/multiplex (`u32 connection | u32 length`, big-endian).

Tests: tests/unit/hooks/frontends/nri/test_wire.py
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from lading.errors import LadingError

PLUGIN: Final = 1  # connection on which the plugin answers
RUNTIME: Final = 2  # connection on which the runtime answers

_HEADER: Final = Struct(">II")
# The runtime reads a message's header into a buffer of 4,096 bytes, so a message's first piece must not be larger. The rest of
# the message is one piece of any size, because the runtime queues at most 256 unread pieces.
_FIRST: Final = 4096


class MalformedError(LadingError):
    """Report bytes that are not NRI; the connection is unusable from then on."""


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
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _HEADER.size:
                    self._connection, self._left = _HEADER.unpack(self._header)
                    self._header.clear()


def render_pieces(connection: int, message: bytes) -> bytes:
    """Return the bytes of a message on a connection: a piece of up to 4,096 bytes, and a second piece with the rest."""
    parts = (message[:_FIRST], message[_FIRST:])
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts if part)
