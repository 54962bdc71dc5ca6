"""Cut a byte stream into HTTP/2 frames, and write the few kinds that Lading sends itself (RFC 9113 sections 4 and 6).

Frames are returned as offsets into one buffer, so that a run of frames that no handler reads is forwarded as one slice.
MalformedError is raised for a frame larger than its receiver announced, and for lengths other than those that the RFC fixes.
The receiver of a frame checks everything else.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # section 3.4
HEADER_LENGTH: Final = 9
DEFAULT_MAX_FRAME_SIZE: Final = 16_384  # section 6.5.2
LARGEST_MAX_FRAME_SIZE: Final = (1 << 24) - 1
DEFAULT_WINDOW: Final = 65_535  # section 6.9.2
LARGEST_WINDOW: Final = (1 << 31) - 1

# Frame types (section 6). Plain integers, not an enum: they are compared once for every frame that passes.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20

# Settings (section 6.5.2)
HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5

# The RFC fixes these lengths; another length is a connection error of type FRAME_SIZE_ERROR.
_FIXED_LENGTH: Final = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}


class ErrorCode(IntEnum):
    """Name the error codes of RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class MalformedFrameError(Exception):
    """Report received bytes that break framing or compression; the connection ends with `code`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_HEADER: Final = Struct(">HBBBL")  # length in two parts, type, flags, stream
_U32: Final = Struct(">L")
_SETTING: Final = Struct(">HL")


class FrameReader:
    """Cut one direction's byte stream into frames. Holds at most one unfinished frame."""

    __slots__ = ("_cuts_through", "_missing", "_partial", "max_frame_size")

    def __init__(self, cuts_through: Callable[[int], bool] = lambda stream: False) -> None:
        """Create a reader. `cuts_through`: whether DATA of this stream is returned before it is complete."""
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE  # bytes, as the receiver of these frames announced
        self._cuts_through = cuts_through
        self._partial = bytearray()
        self._missing = 0  # the number of bytes that `_partial` needs before it is read again

    @property
    def buffered(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to read now: whole frames first, then perhaps a part of one, which `frames` keeps."""
        if not self._partial:
            return data
        if len(self._partial) + len(data) < self._missing:
            self._partial += data
            return b""
        whole = b"".join((self._partial, data))  # copies once
        self._partial.clear()
        return whole

    def frames(self, buffer: bytes) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (type, flags, stream, start, end) of each whole frame, `start` at its header; the bytes after them are kept. An
        incomplete frame that is shown early comes last, with `end` after the buffer's end. Nothing of this frame is kept, and
        its remaining bytes must not be fed."""
        unpack, position, size = _HEADER.unpack_from, 0, len(buffer)
        while size - position >= HEADER_LENGTH:
            high, low, kind, flags, stream = unpack(buffer, position)
            length = high << 8 | low
            if length > self.max_frame_size:
                raise MalformedFrameError(
                    ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes, {self.max_frame_size} are allowed"
                )
            end = position + HEADER_LENGTH + length
            if end > size:
                if kind == DATA and self._cuts_through(stream & 0x7FFF_FFFF):
                    yield kind, flags, stream & 0x7FFF_FFFF, position, end
                    return
                self._missing = end - position
                break
            fixed = _FIXED_LENGTH.get(kind)
            if fixed is not None and fixed != length:
                raise MalformedFrameError(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {kind} with {length} bytes, not {fixed}")
            yield kind, flags, stream & 0x7FFF_FFFF, position, end
            position = end
        else:
            self._missing = HEADER_LENGTH
        if position < size:
            self._partial += buffer[position:]


def read_preface(missing: bytes, data: bytes) -> tuple[bytes, int]:
    """Read the missing part of the client preface from `data`; return the part still missing, and the number of bytes used
    of `data`."""
    given = data[: len(missing)]
    if not missing.startswith(given):
        raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "not an HTTP/2 client preface")
    return missing[len(given) :], len(given)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_header(kind, flags, stream, len(payload)) + payload


def frame_header(kind: int, flags: int, stream: int, length: int) -> bytes:
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _U32.pack(increment))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, _U32.pack(code))


def goaway(last_stream: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _U32.pack(last_stream) + _U32.pack(code) + text.encode("utf-8", "replace")[:256])


def header_block(stream: int, block: bytes, *, end_stream: bool) -> bytes:
    """Return HEADERS, and CONTINUATION if the block does not fit in a frame of the size that every receiver accepts."""
    flags = END_STREAM if end_stream else 0
    size = DEFAULT_MAX_FRAME_SIZE
    if len(block) <= size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[i : i + size] for i in range(0, len(block), size)]
    out = [frame(HEADERS, flags, stream, parts[0])]
    out += [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    out.append(frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    return b"".join(out)


def unsigned(buffer: bytes, position: int) -> int:
    """Return the 31-bit number at `position`: a window increment, a stream id, or (32 bits of which one is reserved) an error
    code."""
    value: int = _U32.unpack_from(buffer, position)[0]
    return value & 0x7FFF_FFFF


def settings(payload: bytes) -> dict[int, int]:
    """Parse SETTINGS (section 6.5.1); for a setting given twice the last one counts (6.5.3)."""
    if len(payload) % _SETTING.size:
        raise MalformedFrameError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes, not a multiple of 6")
    parsed = dict(_SETTING.iter_unpack(payload))
    if parsed.get(INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {parsed[INITIAL_WINDOW_SIZE]}")
    size = parsed.get(MAX_FRAME_SIZE, DEFAULT_MAX_FRAME_SIZE)
    if not DEFAULT_MAX_FRAME_SIZE <= size <= LARGEST_MAX_FRAME_SIZE:
        raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {size}")
    return parsed


def unpadded(buffer: bytes, flags: int, start: int, end: int) -> tuple[int, int]:
    """Return start and end of a frame's content without padding (section 6.1): `start` is behind the frame header."""
    if not flags & PADDED:
        return start, end
    if start == end or buffer[start] > end - start - 1:
        raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return start + 1, end - buffer[start]


def block_fragment(buffer: bytes, flags: int, start: int, end: int) -> bytes:
    """Return the header block fragment of a HEADERS frame, without padding and priority fields (section 6.2)."""
    start, end = unpadded(buffer, flags, start, end)
    if flags & PRIORITY_FIELDS:
        start += 5
    if start > end:
        raise MalformedFrameError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority fields")
    return buffer[start:end]
