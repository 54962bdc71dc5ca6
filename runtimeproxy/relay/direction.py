"""Read the frames and header blocks of one direction of the relay, and forward them in `out`, except where a handler replaces
one.

A header block that comes in pieces (CONTINUATION) is kept until it is complete, because nothing may come between them. DATA
that no handler reads is not kept: C-core writes frames of megabytes, and their beginning is forwarded before their end has
come. What the relay itself sends meanwhile (`inject`) waits for that end.

Source: RFC 9113 4.3, 6.10.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from lading.http2 import frames
from lading.http2.frames import ErrorCode, FrameReader, MalformedError
from lading.http2.headers import Fields, HeaderLane

# All pieces of a header block together.
MAX_BLOCK: Final = 1 << 20
# Slices from this size on are not copied: a view keeps the buffer, of one read, until it is written.
LARGE_SLICE: Final = 32 << 10

Bytes = bytes | memoryview
# (buffer, flags, stream, start, end) of a frame → None: forward it unchanged, or what is sent in its place.
Handler = Callable[[bytes, int, int, int, int], bytes | None]
# (stream, fields, ends the stream) of a header block → the same.
Meet = Callable[[int, Fields, bool], bytes | None]


class Direction:
    """A direction. `meet` gets each header block; `handlers` are for the other types of frames that the relay reads."""

    __slots__ = (
        *("_behind", "_block", "_cut", "_frames", "_handlers", "_left", "_meet", "_opening"),
        *("lane", "out", "reader", "unacknowledged"),
    )

    def __init__(
        self, meet: Meet, handlers: Mapping[int, Handler], *, cuts_through: Callable[[int], bool] = lambda stream: False
    ) -> None:
        """Create a direction. `cuts_through`: whether DATA of this stream is forwarded before it is complete; the handler gets
        it as empty, at its end."""
        self.reader = FrameReader(cuts_through)
        self.lane = HeaderLane()
        self.out: list[Bytes] = []
        self._left = 0  # bytes still to come of the frame whose beginning was forwarded
        self._cut = 0, 0  # its flags and stream
        self._behind: list[Bytes] = []  # what was injected before its end
        # Each SETTINGS sent in this direction and not acknowledged yet; None is a barrier of the relay's own.
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
        """Read bytes, and put what may be forwarded into `out`."""
        if self._left:
            data = self._pass_on(data)
        buffer = self.reader.feed(data)
        out, passing, end = self.out, 0, 0
        for kind, flags, stream, start, end in self.reader.frames(buffer):
            if self._opening and (kind != frames.CONTINUATION or stream != self._opening[0]):
                raise MalformedError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            if end > len(buffer):
                self._left, self._cut = end - len(buffer), (flags & frames.END_STREAM, stream)
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
        """Forward more of the frame whose beginning was forwarded; return what follows it."""
        part = data[: self._left]
        self.out.append(part)
        self._left -= len(part)
        if self._left:
            return b""
        flags, stream = self._cut
        empty = frames.frame_header(frames.DATA, flags, stream, 0)
        self._handlers[frames.DATA](empty, flags, stream, 0, len(empty))
        self.out += self._behind
        self._behind.clear()
        return data[len(part) :]

    def inject(self, data: Bytes) -> None:
        """Send bytes of the relay's own, never inside a frame of the sender."""
        (self._behind if self._left else self.out).append(data)

    def take(self) -> bytes:
        """Return what went into `out` since the last call, in at most one copy."""
        if not self.out:
            return b""
        only = self.out[0] if len(self.out) == 1 else None
        data = only if isinstance(only, bytes) else b"".join(self.out)
        self.out.clear()
        return data

    def _headers(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        if stream == 0:
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        fragment = frames.block_fragment(buffer, flags, start + frames.HEADER_LENGTH, end)
        if flags & frames.END_HEADERS:
            return self._whole_block(stream, bool(flags & frames.END_STREAM), fragment)
        self._opening = stream, flags
        self._block += fragment
        self._frames += buffer[start:end]
        return b""

    def _continuation(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        if self._opening is None:
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += buffer[start + frames.HEADER_LENGTH : end]
        self._frames += buffer[start:end]
        if len(self._frames) > MAX_BLOCK:
            raise MalformedError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {MAX_BLOCK} bytes")
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
        """Encode a block of the relay's own, or one that cannot be forwarded verbatim."""
        return frames.header_block(stream, self.lane.render(fields), end_stream=end_stream)

    def _push_promise(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> bytes | None:
        # It carries a header block; gRPC has no use for it, and passing one unread would desynchronise the table.
        raise MalformedError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE")
