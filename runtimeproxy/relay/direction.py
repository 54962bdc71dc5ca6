"""Read the frames and header blocks of one direction of the relay, and forward them in `out`, unless a handler replaces
them.

A header block that comes in pieces (CONTINUATION) is kept until it is complete, because no other frame may come between them.
DATA frames that no handler reads are forwarded as their bytes arrive, because gRPC's C-core writes frames of megabytes. The
relay's own frames (`inject`) wait until such a frame is complete.

Source: RFC 9113 4.3, 6.10.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from lading.http2 import frames
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane

# A header block may have this many bytes, all pieces together.
MAX_BLOCK: Final = 1 << 20
# A slice of this many bytes or more is not copied: a view keeps the buffer, of one read, until the slice is written.
LARGE_SLICE: Final = 32 << 10

Bytes = bytes | memoryview
# A handler of (buffer, flags, stream, start, end) of a frame returns the bytes to send in its place, or None to forward it.
Handler = Callable[[bytes, int, int, int, int], bytes | None]
# A function of (stream, fields, ends the stream) of a header block returns the same.
Meet = Callable[[int, Fields, bool], bytes | None]


class Direction:
    """Relay the frames of one direction. `meet` gets each header block; `handlers` get the frames of other types."""

    __slots__ = (
        *("_behind", "_block", "_cut", "_frames", "_handlers", "_missing", "_meet", "_opening"),
        *("lane", "out", "reader", "unacknowledged"),
    )

    def __init__(
        self, meet: Meet, handlers: Mapping[int, Handler], *, cuts_through: Callable[[int], bool] = lambda stream: False
    ) -> None:
        """Create a direction. `cuts_through`: whether DATA frames of a stream are forwarded before they are complete; the
        handler then gets an empty frame at the end."""
        self.reader = FrameReader(cuts_through)
        self.lane = HeaderLane()
        self.out: list[Bytes] = []
        self._missing = 0  # missing bytes of the frame whose beginning was forwarded
        self._cut = 0, 0  # flags and stream of that partly forwarded frame
        self._behind: list[Bytes] = []  # injected bytes that wait for the end of that frame
        # SETTINGS that were sent in this direction wait here for their ACK; None is a barrier of the relay's own.
        self.unacknowledged: deque[dict[int, int] | None] = deque()
        self._meet = meet
        self._handlers: Mapping[int, Handler] = {
            **handlers,
            frames.HEADERS: self._headers,
            frames.CONTINUATION: self._continuation,
            frames.PUSH_PROMISE: self._push_promise,
        }
        self._opening: tuple[int, int] | None = None  # stream and flags of the HEADERS whose block is not whole yet
        self._block = bytearray()
        self._frames = bytearray()

    def pump(self, data: bytes) -> None:
        """Read bytes, and append the bytes to forward to `out`."""
        if self._missing:
            data = self._pass_on(data)
        buffer = self.reader.feed(data)
        out, passing, end = self.out, 0, 0
        for kind, flags, stream, start, end in self.reader.frames(buffer):
            if self._opening and (kind != frames.CONTINUATION or stream != self._opening[0]):
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            if end > len(buffer):
                self._missing, self._cut = end - len(buffer), (flags & frames.END_STREAM, stream)
                break
            handler = self._handlers.get(kind)
            if handler is None:
                continue
            instead = handler(buffer, flags, stream, start, end)
            if instead is not None:
                if passing < start:
                    out.append(buffer[passing:start])
                if instead:
                    out.append(instead)
                passing = end
        end = min(end, len(buffer))
        if passing < end:
            if end - passing == len(buffer):
                out.append(buffer)
            elif end - passing >= LARGE_SLICE:
                out.append(memoryview(buffer)[passing:end])
            else:
                out.append(buffer[passing:end])

    def _pass_on(self, data: bytes) -> bytes:
        """Forward more bytes of a partly forwarded frame. Return the bytes after that frame."""
        part = data[: self._missing]
        self.out.append(part)
        self._missing -= len(part)
        if self._missing:
            return b""
        flags, stream = self._cut
        empty = frames.frame_header(frames.DATA, flags, stream, 0)
        self._handlers[frames.DATA](empty, flags, stream, 0, len(empty))
        self.out += self._behind
        self._behind.clear()
        return data[len(part) :]

    def inject(self, data: Bytes) -> None:
        """Send bytes of the relay's own, but never inside a partly forwarded frame."""
        (self._behind if self._missing else self.out).append(data)

    def take(self) -> bytes:
        """Return the bytes of `out` and empty it. The bytes are copied once at most."""
        if not self.out:
            return b""
        only = self.out[0] if len(self.out) == 1 else None
        data = only if isinstance(only, bytes) else b"".join(self.out)
        self.out.clear()
        return data

    def _headers(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        if stream == 0:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        fragment = frames.block_fragment(buffer, flags, start + frames.HEADER_LENGTH, end)
        if flags & frames.END_HEADERS:
            return self._whole_block(stream, bool(flags & frames.END_STREAM), fragment)
        self._opening = stream, flags
        self._block += fragment
        self._frames += buffer[start:end]
        return b""

    def _continuation(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        if self._opening is None:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += buffer[start + frames.HEADER_LENGTH : end]
        self._frames += buffer[start:end]
        if len(self._frames) > MAX_BLOCK:
            raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {MAX_BLOCK} bytes")
        if not flags & frames.END_HEADERS:
            return b""
        end_stream, block, whole = bool(self._opening[1] & frames.END_STREAM), bytes(self._block), bytes(self._frames)
        self._opening = None
        self._block.clear()
        self._frames.clear()
        instead = self._whole_block(stream, end_stream, block)
        return whole if instead is None else instead

    def _whole_block(self, stream: int, end_stream: bool, block: bytes) -> bytes | None:
        fields = self.lane.decode(block)
        instead = self._meet(stream, fields, end_stream)
        if instead is not None:
            self.lane.verbatim = False
            return instead
        if self.lane.verbatim:
            self.lane.passed()
            return None
        return self.render_block(stream, fields, end_stream=end_stream)

    def render_block(self, stream: int, fields: Fields, *, end_stream: bool) -> bytes:
        """Encode a header block of the relay's own, or a block that cannot be forwarded verbatim."""
        return frames.header_block(stream, self.lane.render(fields), end_stream=end_stream)

    def _push_promise(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        # gRPC has no use for PUSH_PROMISE, and to pass its header block unread would desynchronise the HPACK table.
        raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE")
