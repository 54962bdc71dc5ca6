"""Test header blocks in pieces, and frames that may not come in between."""

import hpack
import pytest

from lading.http2 import frames
from lading.http2.blocks import MAX_BLOCK, BlockReader
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import CACHED_BLOCK, Fields

FIELDS = ((b":path", b"/a"), (b"x", b"y" * 50))
BLOCK = hpack.Encoder().encode(FIELDS)


def read(reader: BlockReader, kind: int, flags: int, stream: int, payload: bytes) -> Fields | None:
    reader.meet(kind, stream)
    return reader.read(payload, kind, flags, stream, 0, len(payload))


def reader() -> BlockReader:
    return BlockReader(cached_block=CACHED_BLOCK)


def test_a_block_in_one_frame() -> None:
    blocks = reader()
    assert read(blocks, frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, BLOCK) == FIELDS
    assert blocks.ends_stream
    assert read(blocks, frames.HEADERS, frames.END_HEADERS, 3, BLOCK)
    assert not blocks.ends_stream


@pytest.mark.parametrize("cut", [0, 1, len(BLOCK) - 1, len(BLOCK)])
def test_a_block_in_pieces(cut: int) -> None:
    """Check padding and priority fields, which only the first frame has, as it has the end of the stream."""
    blocks = reader()
    first = b"\2" + bytes(5) + BLOCK[:cut] + b"\0\0"
    flags = frames.PADDED | frames.PRIORITY_FIELDS | frames.END_STREAM
    assert read(blocks, frames.HEADERS, flags, 1, first) is None
    assert read(blocks, frames.CONTINUATION, 0, 1, b"") is None
    assert read(blocks, frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[cut:]) == FIELDS
    assert blocks.ends_stream
    blocks.meet(frames.DATA, 1)


@pytest.mark.parametrize(
    ("kind", "stream"), [(frames.PING, 0), (frames.HEADERS, 1), (frames.DATA, 1), (frames.CONTINUATION, 3)]
)
def test_nothing_comes_between(kind: int, stream: int) -> None:
    blocks = reader()
    read(blocks, frames.HEADERS, 0, 1, BLOCK)
    with pytest.raises(MalformedFrameError) as e:
        blocks.meet(kind, stream)
    assert e.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_continuation_of_nothing() -> None:
    with pytest.raises(MalformedFrameError):
        reader().meet(frames.CONTINUATION, 1)


def test_a_block_without_end() -> None:
    blocks, piece = reader(), bytes(16_384)
    for kind in (frames.HEADERS, *[frames.CONTINUATION] * 3):
        read(blocks, kind, 0, 1, piece)
    with pytest.raises(MalformedFrameError) as e:
        read(blocks, frames.CONTINUATION, 0, 1, b"x")
    assert e.value.code is ErrorCode.ENHANCE_YOUR_CALM
    assert len(piece) * 4 == MAX_BLOCK
