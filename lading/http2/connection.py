"""Speak HTTP/2 at one end of a connection: bytes of the peer in, bytes for the peer out; no I/O and no clock.

A subclass opens streams, and defines the meaning of header blocks, DATA and resets. HEADERS are sent at once, and DATA as far
as the peer's windows allow. Sent blocks never change the peer's header table. The peer gets the connection's credit for DATA in
large portions, so the subclass announces windows that need no credit during a usual message. MalformedFrameError ends the
connection: after frames that interrupt a header block, blocks that are too large, credit of 0, and windows over 2^31-1.

The relay of the CRI proxy is at neither end, so it does not use this module.

Source: RFC 9113 5.2, 6.2, 6.5.2, 6.9, 6.10.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, Generic, TypeVar

from lading.http2 import frames
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError
from lading.http2.headers import CACHED_BLOCK, Fields, HeaderLane

# A block may have this many bytes, all pieces together. C-core accepts 16 KiB decoded; Lading's have some hundred bytes.
MAX_BLOCK: Final = 64 << 10
# The peer gets credit once it sent this many bytes: half of the window that every connection has (RFC 9113 6.9.2).
CREDIT: Final = 32 << 10
_SETTING: Final = Struct(">HL")


class Stream:
    """Hold the bytes that came on a stream, and the bytes to send on it (`unsent`) as the peer's `window` allows."""

    __slots__ = ("content", "ended", "id", "trailers", "unsent", "window")

    def __init__(self, stream_id: int) -> None:
        self.id = stream_id
        self.content = bytearray()
        self.ended = False  # the peer ended its side
        self.unsent = memoryview(b"")
        self.trailers = b""  # a rendered block that ends this side after `unsent`; if empty, the last DATA ends it
        self.window = 0  # bytes; set when the stream is opened


S = TypeVar("S", bound=Stream)


class Connection(Generic[S]):
    def __init__(self, *, preface: bytes = b"", cached_block: int = CACHED_BLOCK) -> None:
        """Create one end. `preface`: the bytes that the peer must send first. `cached_block`: see HeaderLane."""
        self.last_stream = 0  # the stream that was opened last
        self.begun = False  # the peer's SETTINGS came
        self.streams: dict[int, S] = {}  # open streams
        self.out: list[bytes] = []
        self._preface = preface
        self._reader = FrameReader()
        self._received = HeaderLane(cached_block=cached_block)
        self._sent = HeaderLane()
        self._block: bytearray | None = None  # the beginning of an incomplete block
        self._block_stream, self._block_ends = 0, False  # the block's stream, and whether the block ends that stream
        self._initial_window = self._window = frames.DEFAULT_WINDOW  # the peer's windows of a new stream and of the connection
        self._max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        self._uncredited = 0  # received bytes of DATA, with padding, for which the peer has no credit yet

    # ---- a subclass defines these

    def accept(self, stream_id: int, fields: Fields) -> S | None:
        """Open the stream that the peer opened with this header block. Return None to ignore the block."""
        return None

    def receive_fields(self, stream: S, fields: Fields) -> None:
        """Process a header block of an open stream, whose `ended` is set already."""

    def receive_data(self, stream: S) -> None:
        """Process DATA of an open stream, whose `content` and `ended` are set already."""

    def receive_reset(self, stream: S, code: int) -> None:
        """Process the peer's RST_STREAM. The stream is closed already."""

    def receive_goaway(self, last_stream: int) -> None:
        """Process GOAWAY. The peer has not processed streams after `last_stream`."""

    # ---- bytes in

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the peer, and return the bytes to send back."""
        if self._preface:
            self._preface, used = frames.read_preface(self._preface, data)
            data = data[used:]
        buffer = self._reader.feed(data)
        for kind, flags, stream_id, start, end in self._reader.frames(buffer):
            self._frame(buffer, kind, flags, stream_id, start + frames.HEADER_LENGTH, end)
        if self._uncredited >= CREDIT:
            self.out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        return self.take()

    def _frame(self, buffer: bytes, kind: int, flags: int, stream_id: int, start: int, end: int) -> None:
        block = self._block
        if kind == frames.CONTINUATION if block is None else kind != frames.CONTINUATION or stream_id != self._block_stream:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted, or continued without one")
        match kind:
            case frames.DATA:
                self._data(buffer, flags, stream_id, start, end)
            case frames.HEADERS:
                if stream_id == 0:
                    raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
                self._block_stream, self._block_ends = stream_id, bool(flags & frames.END_STREAM)
                self._fragment(flags, frames.block_fragment(buffer, flags, start, end))
            case frames.CONTINUATION:
                self._fragment(flags, buffer[start:end])
            case frames.RST_STREAM:
                if closed := self.streams.pop(stream_id, None):
                    self.receive_reset(closed, frames.unsigned(buffer, start))
            case frames.SETTINGS if not flags & frames.ACK:
                self._announced(frames.settings(buffer[start:end]))
            case frames.PING if not flags & frames.ACK:
                self.out.append(frames.frame(frames.PING, frames.ACK, 0, buffer[start:end]))
            case frames.GOAWAY:
                if end - start < 8:
                    raise MalformedFrameError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY too short")
                self.receive_goaway(frames.unsigned(buffer, start))
            case frames.WINDOW_UPDATE:
                self._credited(stream_id, frames.unsigned(buffer, start))
            case frames.PUSH_PROMISE:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def _data(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> None:
        self._uncredited += end - start
        stream = self.streams.get(stream_id)
        if stream is None or stream.ended:
            if stream_id == 0 or stream_id > self.last_stream:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "DATA of no call")
            return  # the stream is closed
        start, end = frames.unpadded(buffer, flags, start, end)
        stream.content += memoryview(buffer)[start:end]
        stream.ended = bool(flags & frames.END_STREAM)
        self.receive_data(stream)

    def _fragment(self, flags: int, fragment: bytes) -> None:
        """Process a part of a header block, and the block once it is complete."""
        if self._block is not None or not flags & frames.END_HEADERS:
            self._block = (self._block or bytearray()) + fragment
            if len(self._block) > MAX_BLOCK:
                raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {MAX_BLOCK} bytes")
            if not flags & frames.END_HEADERS:
                return
            fragment, self._block = bytes(self._block), None
        fields = self._received.decode(fragment)
        stream = self.streams.get(self._block_stream) or self.accept(self._block_stream, fields)
        if stream is not None and not stream.ended:
            stream.ended = self._block_ends
            self.receive_fields(stream, fields)

    def _announced(self, settings: Mapping[int, int]) -> None:
        """Apply the peer's SETTINGS, also to open streams, and acknowledge them."""
        self.begun = True
        more = settings.get(frames.INITIAL_WINDOW_SIZE, self._initial_window) - self._initial_window
        self._initial_window += more
        self._max_frame = settings.get(frames.MAX_FRAME_SIZE, self._max_frame)
        if frames.HEADER_TABLE_SIZE in settings:
            self._sent.announce_table_size(settings[frames.HEADER_TABLE_SIZE])
            self._sent.acknowledge_table_size(settings[frames.HEADER_TABLE_SIZE])
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        for stream in list(self.streams.values()):
            stream.window += more
            self.send(stream)

    def _credited(self, stream_id: int, increment: int) -> None:
        window, waiting = increment, list(self.streams.values())
        if stream_id == 0:
            self._window = window = self._window + increment
        elif stream := self.streams.get(stream_id):
            stream.window = window = stream.window + increment
            waiting = [stream]
        if increment == 0 or window > frames.LARGEST_WINDOW:
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE of {increment} on stream {stream_id}")
        for stream in waiting:
            self.send(stream)

    # ---- bytes out

    def take(self) -> bytes:
        """Return the bytes to send since the last call."""
        data = b"".join(self.out)
        self.out.clear()
        return data

    def greet(self, settings: Mapping[int, int], *, credit: int) -> None:
        """Send SETTINGS, and enlarge the connection's window by `credit` bytes, if any."""
        self.out.append(frames.frame(frames.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings.items())))
        if credit:
            self.out.append(frames.window_update(0, credit))

    def open(self, stream: S) -> S:
        self.last_stream = stream.id
        stream.window = self._initial_window
        self.streams[stream.id] = stream
        return stream

    def send_block(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        """Send HEADERS with a block that a HeaderLane rendered, so that it depends on no table."""
        self.out.append(frames.header_block(stream_id, self._sent.render(()) + block, end_stream=end_stream))

    def send(self, stream: S) -> None:
        """Send DATA as far as the peer's windows allow. After the last DATA, send the trailers, and close the stream."""
        while stream.unsent:
            size = min(len(stream.unsent), stream.window, self._window, self._max_frame)
            if size <= 0:
                return
            part, stream.unsent = bytes(stream.unsent[:size]), stream.unsent[size:]
            stream.window -= size
            self._window -= size
            flags = 0 if stream.unsent or stream.trailers else frames.END_STREAM
            self.out.append(frames.frame(frames.DATA, flags, stream.id, part))
        if stream.trailers:
            self.send_block(stream.id, stream.trailers, end_stream=True)
            del self.streams[stream.id]
