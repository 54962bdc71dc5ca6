"""Read the frames of one side of a connection by an independent HPACK decoder, without judging them."""

from collections import defaultdict
from collections.abc import Iterator

import hpack

from lading.http2 import frames

Block = tuple[tuple[bytes, bytes], ...]


class Reading:
    """One direction's bytes at one point: frames, and blocks by stream."""

    def __init__(self, preface: int) -> None:
        self.blocks: dict[int, list[Block]] = defaultdict(list)
        self.readable = True
        self.ended_block = False  # the last frame ended a block, and with it its stream
        self._rest = b""
        self._skip = preface
        self._decoder = hpack.Decoder(max_header_list_size=1 << 26)
        self._decoder.max_allowed_table_size = (
            1 << 32
        )  # only the content is compared here; tests/properties checks the states of streams with h2
        self._block: bytes | None = None
        self._block_stream = 0
        self._ends_stream = False

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """(type, flags, stream, payload); header blocks are read on the way."""
        skipped = data[: self._skip]
        self._skip -= len(skipped)
        data = self._rest + data[len(skipped) :]
        while len(data) >= 9 and len(data) >= (size := 9 + int.from_bytes(data[:3], "big")):
            kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big") & 0x7FFF_FFFF
            self._meet(kind, flags, stream, data[9:size])
            yield kind, flags, stream, data[9:size]
            data = data[size:]
        self._rest = data

    @property
    def between_frames(self) -> bool:
        return not self._rest and self._block is None

    @property
    def half_data(self) -> tuple[int, bytes] | None:
        """Stream and bytes of a DATA frame that has begun."""
        begun = len(self._rest) >= frames.HEADER_LENGTH and self._rest[3] == frames.DATA and self._block is None
        return (int.from_bytes(self._rest[5:9], "big") & 0x7FFF_FFFF, self._rest) if begun else None

    def _meet(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.ended_block = False
        if self._block is not None:
            self.readable &= kind == frames.CONTINUATION and stream == self._block_stream
        if kind == frames.HEADERS:
            start, end = 0, len(payload)
            if flags & frames.PADDED and payload:
                start, end = 1, end - payload[0]
            if flags & frames.PRIORITY_FIELDS:
                start += 5
            self._block, self._block_stream = payload[start : max(start, end)], stream
            self._ends_stream = bool(flags & frames.END_STREAM)
        elif kind == frames.CONTINUATION:
            self.readable &= self._block is not None
            self._block = (self._block or b"") + payload
        if kind in (frames.HEADERS, frames.CONTINUATION) and flags & frames.END_HEADERS and self._block is not None:
            block, self._block = self._block, None
            self.ended_block = self._ends_stream
            try:
                self.blocks[self._block_stream].append(tuple((n, v) for n, v in self._decoder.decode(block, raw=True)))
            except (hpack.HPACKError, UnicodeDecodeError):
                self.readable = False


def unpadded(flags: int, payload: bytes) -> bytes:
    """The content of a DATA frame, as far as it has one: no one judges the padding of what comes on a call that is over."""
    return payload[1 : len(payload) - payload[0]] if flags & frames.PADDED and payload else payload
