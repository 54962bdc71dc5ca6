"""The other side of a connection whose one end is fuzzed: choices become frames, mostly well formed, some cut or damaged.

It takes a tape. It returns the bytes that arrive at the end under test, and the flow-control window that this end has then.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import hpack

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from tests.fuzz.reading import Reading
from tests.fuzz.tape import Tape

SIZES: Final = (0, 1, 4, 5, 6, 100, 255, 995, 1000, 1001, 4000, 16_384, 16_385, 65_535, 70_000)
INCREMENTS: Final = (0, 1, 5, 100, 1000, 16_384, 65_535, 1 << 20, (1 << 31) - 65_536, (1 << 31) - 1)
SETTINGS: Final = (
    (frames.HEADER_TABLE_SIZE, (0, 1, 64, 4096, 65_536)),
    (frames.INITIAL_WINDOW_SIZE, (0, 1, 5, 1000, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31)),
    (frames.MAX_FRAME_SIZE, (16_384, 20_000, 1 << 20, 16_383)),
    (0x99, (1,)),
)
CODES: Final = (ErrorCode.NO_ERROR, ErrorCode.CANCEL, ErrorCode.REFUSED_STREAM, ErrorCode.ENHANCE_YOUR_CALM)
EXTRAS: Final = ((), ((b"x-a", b"1"),), ((b"x-b", b"v" * 60), (b"x-a", b"1")), ((b"x-c", b"w" * 4000),))


def damaged(data: bytes, bit: int) -> bytes:
    """Turn one of the first bits of the data."""
    bit %= 8 * min(len(data), 32)
    turned = bytearray(data)
    turned[bit // 8] ^= 1 << bit % 8
    return bytes(turned)


def cut(data: bytes, size: int) -> list[bytes]:
    """Cut the data into pieces; `size` 0, or too many pieces: not at all."""
    size = size if size and len(data) <= 200 * size else max(1, len(data))
    return [data[i : i + size] for i in range(0, len(data), size)]


def in_frames(stream: int, content: bytes, *, padding: int | None, end_stream: bool) -> bytes:
    """Return DATA frames of lawful size."""
    out, size = b"", 16_384 - 256
    for at in range(0, max(1, len(content)), size):
        piece, last = content[at : at + size], at + size >= len(content)
        piece = piece if padding is None else bytes((padding,)) + piece + bytes(padding)
        flags = (0 if padding is None else frames.PADDED) | (frames.END_STREAM if end_stream and last else 0)
        out += frames.frame(frames.DATA, flags, stream, piece)
    return out


def split_block(stream: int, block: bytes, flags: int) -> tuple[bytes, bytes]:
    """Return a block in HEADERS and CONTINUATIONs, and the last one; perhaps padded, with priority fields, or interrupted."""
    head, tail = block[: len(block) // 2], block[len(block) // 2 :]
    head = b"\0\0\0\0\7" + head if flags & frames.PRIORITY_FIELDS else head
    head = b"\3" + head + b"\0\0\0" if flags & frames.PADDED else head
    kept = flags & (frames.PRIORITY_FIELDS | frames.PADDED | frames.END_STREAM)
    between = frames.frame(frames.PING, 0, 0, bytes(8)) if flags & 0x40 else b""
    first = frames.frame(frames.HEADERS, kept, stream, head) + frames.frame(frames.CONTINUATION, 0, stream)
    return first + between, frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, tail)


class Room:
    """The window of the end under test, never smaller than it knows: a window that shrinks counts from the next bytes on."""

    def __init__(self) -> None:
        self.max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        self.in_all = frames.DEFAULT_WINDOW
        self.said = 0  # SETTINGS, each of which is to be acknowledged
        self._initial = frames.DEFAULT_WINDOW
        self._lower: int | None = None
        self._of: dict[int, int] = defaultdict(int)  # beyond the initial window, by stream

    def of(self, stream: int) -> int:
        return self._initial + self._of[stream]

    def used(self, stream: int, size: int) -> None:
        self.in_all -= size
        self._of[stream] -= size

    def meet(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE and stream == 0:
            self.in_all += frames.unsigned(payload, 0)
        elif kind == frames.WINDOW_UPDATE:
            self._of[stream] += frames.unsigned(payload, 0)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            settings = frames.settings(payload)
            self.said += 1
            self.max_frame = max(self.max_frame, settings.get(frames.MAX_FRAME_SIZE, 0))
            self._lower = settings.get(frames.INITIAL_WINDOW_SIZE, self._lower)
            self._initial = max(self._initial, self._lower or 0)

    def settle(self) -> None:
        """Apply the smaller initial window: the other side has received the setting."""
        if self._lower is not None:
            self._initial, self._lower = self._lower, None


class Peer:
    """`newest`: the stream that was opened last, by either side."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.newest = -1
        self.said = Reading(0)
        self.room = Room()
        self.proper = True  # nothing was said that might leave its header table out of step, or a frame half said
        self._encoder = hpack.Encoder()
        self._chunk = 0  # how the next bytes are cut; 0: not at all
        self._mangle = 0  # where a bit of the next ones is turned, from 1
        self.anything: tuple[Callable[[], bytes], ...] = (
            self._settings,
            self._settings,
            self._window_update,
            self._window_update,
            self._window_update,
            self._reset,
            self._ping,
            lambda: frames.goaway(self.stream(), ErrorCode.NO_ERROR),
            lambda: frames.frame(frames.SETTINGS, frames.ACK, 0),
            self._raw_frame,
            self._raw_bytes,
            self._broken_block,
            self._split_block,
            self._cut,
            self._damage,
        )

    def pieces(self, data: bytes) -> list[bytes]:
        """Return the bytes as they arrive."""
        if self._mangle and data:
            data, self._mangle = damaged(data, self._mangle - 1), 0
        return cut(data, self._chunk)

    def stream(self) -> int:
        return self.tape.stream(self.newest)

    def widen(self, streams: Iterable[int]) -> Iterator[bytes]:
        """Yield the credit that makes the windows of the connection and of the streams as large as possible."""
        for stream in (0, *streams):
            has = self.room.of(stream) if stream else self.room.in_all
            if has < frames.LARGEST_WINDOW:
                yield frames.window_update(stream, min(frames.LARGEST_WINDOW, frames.LARGEST_WINDOW - has))

    def headers(self, stream: int, fields: Mapping[bytes, bytes], *, end_stream: bool) -> bytes:
        extra = self.tape.pick(EXTRAS)
        block = self._encoder.encode(
            [*fields.items(), *extra], huffman=extra is not EXTRAS[-1]
        )  # Huffman coding of the last, long entry would take most of the time of a case
        return frames.header_block(stream, block, end_stream=end_stream)

    def data(self, stream: int, content: bytes, *, end_stream: bool) -> bytes:
        """Return DATA frames, some of them padded."""
        padding = self.tape.byte() if self.tape.byte() > 0xD0 else None
        return in_frames(stream, content, padding=padding, end_stream=end_stream)

    def _settings(self) -> bytes:
        setting, values = self.tape.pick(SETTINGS)
        payload = setting.to_bytes(2, "big") + self.tape.pick(values).to_bytes(4, "big")
        return frames.frame(frames.SETTINGS, 0, 0, payload)

    def _window_update(self) -> bytes:
        return frames.window_update(self.stream() if self.tape.byte() & 1 else 0, self.tape.pick(INCREMENTS))

    def _reset(self) -> bytes:
        return frames.rst_stream(self.stream(), self.tape.pick(CODES))

    def _ping(self) -> bytes:
        return frames.frame(frames.PING, self.tape.byte() & frames.ACK, 0, b"12345678")

    def _raw_frame(self) -> bytes:
        self.proper = False
        kind, flags, stream = self.tape.byte() % 12, self.tape.byte(), self.stream()
        return frames.frame(kind, flags, stream, self.tape.take(self.tape.byte() % 40))

    def _raw_bytes(self) -> bytes:
        self.proper = False
        return self.tape.take(self.tape.byte() % 40)

    def _broken_block(self) -> bytes:
        self.proper = False
        flags = self.tape.byte() | frames.END_HEADERS
        return frames.frame(frames.HEADERS, flags, self.stream(), self.tape.take(self.tape.byte() % 40))

    def _split_block(self) -> bytes:
        self.proper = False
        stream, flags = self.stream(), self.tape.byte()
        block = self._encoder.encode([(b":status", b"200"), (b"grpc-status", b"0"), *self.tape.pick(EXTRAS)])
        return b"".join(split_block(stream, block, flags))

    def _cut(self) -> bytes:
        self._chunk = self.tape.byte() % 40
        return b""

    def _damage(self) -> bytes:
        self.proper = False
        self._mangle = 1 + self.tape.byte()
        return b""
