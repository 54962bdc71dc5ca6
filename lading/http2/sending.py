"""Send header blocks and messages from one end of a connection, as its peer's windows allow (RFC 9113 5.2, 6.5.2, 6.9).

HEADERS are sent at once, and DATA as far as the peer's windows allow. Sent blocks never change the peer's header table. Credit
of 0, and windows over 2^31-1, raise MalformedError.
"""

from collections.abc import Iterable

from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import HeaderLane


class Outgoing:
    """Hold the sending side of a stream: the peer's window (`room`, bytes), and the bytes still to send (`left`)."""

    __slots__ = ("left", "room", "stream")

    def __init__(self, stream: int, room: int) -> None:
        self.stream = stream
        self.room = room
        self.left = memoryview(b"")


class Sender:
    def __init__(self) -> None:
        self._lane = HeaderLane()
        self._initial_room = self._room = frames.DEFAULT_WINDOW  # windows of a new stream and of the connection
        self._max_frame = frames.DEFAULT_MAX_FRAME_SIZE

    def opened(self, stream: int) -> Outgoing:
        return Outgoing(stream, self._initial_room)

    def headers(self, stream: int, block: bytes, *, end_stream: bool) -> bytes:
        """Return HEADERS with a block that a HeaderLane rendered, so that it depends on no table."""
        return frames.header_block(stream, self._lane.render(()) + block, end_stream=end_stream)

    def data(self, outgoing: Outgoing, *, end_stream: bool) -> list[bytes]:
        """Return DATA of the bytes still to send, as the windows allow; `end_stream` is set on the last frame."""
        out = []
        while outgoing.left:
            size = min(len(outgoing.left), outgoing.room, self._room, self._max_frame)
            if size <= 0:
                break
            part, outgoing.left = bytes(outgoing.left[:size]), outgoing.left[size:]
            outgoing.room -= size
            self._room -= size
            flags = frames.END_STREAM if end_stream and not outgoing.left else 0
            out.append(frames.frame(frames.DATA, flags, outgoing.stream, part))
        return out

    def announced(self, payload: bytes, streams: Iterable[Outgoing]) -> bytes:
        """Apply the peer's SETTINGS, also to the open `streams`. Return the acknowledgement of the SETTINGS."""
        settings = frames.settings(payload)
        if frames.INITIAL_WINDOW_SIZE in settings:
            more = settings[frames.INITIAL_WINDOW_SIZE] - self._initial_room
            self._initial_room += more
            for outgoing in streams:
                outgoing.room += more
        self._max_frame = settings.get(frames.MAX_FRAME_SIZE, self._max_frame)
        if frames.HEADER_TABLE_SIZE in settings:
            self._lane.announce_table_size(settings[frames.HEADER_TABLE_SIZE])
            self._lane.acknowledge_table_size(settings[frames.HEADER_TABLE_SIZE])
        return frames.frame(frames.SETTINGS, frames.ACK, 0)

    def credited(self, stream: int, outgoing: Outgoing | None, increment: int) -> None:
        """Add the peer's credit. `outgoing`: the stream, if it is open."""
        room = increment
        if stream == 0:
            self._room = room = self._room + increment
        elif outgoing:
            outgoing.room = room = outgoing.room + increment
        if increment == 0 or room > frames.LARGEST_WINDOW:
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE of {increment} on stream {stream}")
