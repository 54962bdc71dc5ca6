"""Send header blocks and messages from one end of a connection, as its peer's windows allow (RFC 9113 5.2, 6.5.2, 6.9).

It takes what the peer announced and credited, and messages. It sends HEADERS, and DATA that fits. Nothing that is sent changes
the peer's header table. It refuses credit of 0, and windows over 2^31-1.
"""

from collections.abc import Iterable

from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedError
from lading.http2.headers import HeaderLane


class Outgoing:
    """One stream: the peer's window there, `room` in bytes, and what is still to be sent."""

    __slots__ = ("left", "room", "stream")

    def __init__(self, stream: int, room: int) -> None:
        self.stream = stream
        self.room = room
        self.left = memoryview(b"")


class Sender:
    def __init__(self) -> None:
        self._lane = HeaderLane()
        self._initial_room = self._room = frames.DEFAULT_WINDOW  # of a stream that is opened; of the connection
        self._max_frame = frames.DEFAULT_MAX_FRAME_SIZE

    def opened(self, stream: int) -> Outgoing:
        return Outgoing(stream, self._initial_room)

    def headers(self, stream: int, block: bytes, *, end_stream: bool) -> bytes:
        """Return HEADERS. `block`: rendered by a HeaderLane, so it depends on no table."""
        return frames.header_block(stream, self._lane.render(()) + block, end_stream=end_stream)

    def data(self, outgoing: Outgoing, *, end_stream: bool) -> list[bytes]:
        """Return DATA of what is left, as the windows allow; `end_stream` is set on the last of it."""
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
        """Apply the peer's SETTINGS, for the open `streams` too. Return their acknowledgement."""
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
        """Add credit. `outgoing`: the stream's, if it is open."""
        room = increment
        if stream == 0:
            self._room = room = self._room + increment
        elif outgoing:
            outgoing.room = room = outgoing.room + increment
        if increment == 0 or room > frames.LARGEST_WINDOW:
            raise MalformedError(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE of {increment} on stream {stream}")
