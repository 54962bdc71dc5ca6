"""Decode complete header blocks: HEADERS and the CONTINUATIONs after it (RFC 9113 6.2, 6.10).

This reader is for an end of a connection, which needs only the fields of a block; the relay also keeps the frames
(runtimeproxy/relay/direction.py). MalformedError is raised for other frames within a block, and for blocks that are too large.
"""

from typing import Final

from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane

# A block may have this many bytes, all pieces together. C-core accepts 16 KiB decoded; Lading's have some hundred bytes.
MAX_BLOCK: Final = 64 << 10


class BlockReader:
    def __init__(self, *, cached_block: int) -> None:
        """Create a reader. `cached_block`: see HeaderLane."""
        self.ends_stream = False  # whether the last block ends its stream
        self._lane = HeaderLane(cached_block=cached_block)
        self._block: bytearray | None = None  # the beginning of an incomplete block
        self._stream = 0

    def meet(self, kind: int, stream: int) -> None:
        """Check the order of frames. Must be called first for every frame."""
        if kind == frames.CONTINUATION if self._block is None else (kind != frames.CONTINUATION or stream != self._stream):
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted, or continued without one")

    def read(self, buffer: bytes, kind: int, flags: int, stream: int, start: int, end: int) -> Fields | None:
        """Read HEADERS or CONTINUATION, whose content is between `start` and `end`. Return the fields, once the block is
        complete."""
        if kind == frames.HEADERS:
            self._stream, self.ends_stream = stream, bool(flags & frames.END_STREAM)
            fragment = frames.block_fragment(buffer, flags, start, end)
            if flags & frames.END_HEADERS:
                return self._lane.decode(fragment)
            self._block = bytearray(fragment)
        elif self._block is not None:
            self._block += buffer[start:end]
        block = self._block or b""
        if len(block) > MAX_BLOCK:
            raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {MAX_BLOCK} bytes")
        if not flags & frames.END_HEADERS:
            return None
        self._block = None
        return self._lane.decode(bytes(block))
