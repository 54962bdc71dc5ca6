import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2 import frames
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError

Frame = tuple[int, int, int, bytes]
KINDS = [frames.DATA, frames.HEADERS, frames.SETTINGS, frames.GOAWAY, frames.CONTINUATION, 0x0F]

some_frames = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 255), st.integers(0, (1 << 31) - 1), st.binary(max_size=300)), max_size=12
)


def read(reader: FrameReader, data: bytes) -> list[Frame]:
    buffer = reader.feed(data)
    result = reader.frames(buffer)
    return [(kind, flags, stream, buffer[start + frames.HEADER_LENGTH : end]) for kind, flags, stream, start, end in result]


@given(some_frames, st.lists(st.integers(1, 40), max_size=30), st.integers(1, 500))
def test_frames_are_the_same_however_the_bytes_come(written: list[Frame], cuts: list[int], rest: int) -> None:
    data = b"".join(frames.frame(*one) for one in written)
    reader, result = FrameReader(), []
    for size in cuts:
        result += read(reader, data[:size])
        data = data[size:]
    for at in range(0, len(data), rest):
        result += read(reader, data[at : at + rest])
    assert result == written
    assert reader.buffered == 0


def test_an_unfinished_frame_is_kept_and_nothing_else() -> None:
    reader = FrameReader()
    whole, part = frames.frame(frames.DATA, 0, 1, b"x" * 50), frames.frame(frames.DATA, 0, 3, b"y" * 50)[:20]
    assert len(read(reader, whole + part)) == 1
    assert reader.buffered == 20


def test_a_frame_that_is_too_large_is_refused_before_it_is_there() -> None:
    reader = FrameReader()
    head = frames.frame(frames.DATA, 0, 1, b"x" * (frames.DEFAULT_MAX_FRAME_SIZE + 1))[: frames.HEADER_LENGTH]
    with pytest.raises(MalformedFrameError) as e:
        read(reader, head)
    assert e.value.code is ErrorCode.FRAME_SIZE_ERROR
    reader = FrameReader()
    reader.max_frame_size = frames.LARGEST_MAX_FRAME_SIZE
    assert read(reader, head) == []


@pytest.mark.parametrize(
    ("kind", "length"), [(frames.RST_STREAM, 3), (frames.RST_STREAM, 5), (frames.PING, 7), (frames.WINDOW_UPDATE, 8)]
)
def test_lengths_that_the_rfc_fixes(kind: int, length: int) -> None:
    with pytest.raises(MalformedFrameError) as e:
        read(FrameReader(), frames.frame(kind, 0, 1, b"\0" * length))
    assert e.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    assert read(FrameReader(), frames.frame(frames.DATA, 0, 0x8000_0005)) == [(frames.DATA, 0, 5, b"")]


@given(st.lists(st.integers(1, 30), max_size=10), st.binary(max_size=20))
def test_the_preface_may_come_in_pieces(cuts: list[int], behind: bytes) -> None:
    data, missing, left = frames.PREFACE + behind, frames.PREFACE, b""
    for size in [*cuts, len(data)]:
        missing, taken = frames.read_preface(missing, data[:size])
        left += data[:size][taken:]
        data = data[size:]
    assert (missing, left) == (b"", behind)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"])
def test_another_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError) as e:
        frames.read_preface(frames.PREFACE, data)
    assert e.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 50_000])
@pytest.mark.parametrize("end_stream", [True, False])
def test_a_block_of_any_size_fits_its_frames(size: int, end_stream: bool) -> None:
    block = bytes(i % 251 for i in range(size))
    result = read(FrameReader(), frames.header_block(7, block, end_stream=end_stream))
    kinds = [frames.HEADERS] + [frames.CONTINUATION] * max(0, -(-size // frames.DEFAULT_MAX_FRAME_SIZE) - 1)
    assert [kind for kind, *_ in result] == kinds
    assert b"".join(content for *_, content in result) == block
    assert [bool(flags & frames.END_HEADERS) for _, flags, *_ in result] == [False] * (len(kinds) - 1) + [True]
    assert [bool(flags & frames.END_STREAM) for _, flags, *_ in result] == [end_stream] + [False] * (len(kinds) - 1)


def test_the_frames_of_our_own() -> None:
    assert read(FrameReader(), frames.window_update(3, 70_000)) == [(frames.WINDOW_UPDATE, 0, 3, (70_000).to_bytes(4, "big"))]
    assert read(FrameReader(), frames.rst_stream(5, ErrorCode.CANCEL)) == [(frames.RST_STREAM, 0, 5, b"\0\0\0\x08")]
    ((kind, _, stream, content),) = read(FrameReader(), frames.goaway(9, ErrorCode.PROTOCOL_ERROR, "ü" * 1000))
    assert (kind, stream, content[:8]) == (frames.GOAWAY, 0, b"\0\0\0\x09\0\0\0\x01")
    assert len(content) <= 8 + 256


def setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


def test_settings() -> None:
    given, again = (setting(frames.INITIAL_WINDOW_SIZE, value) for value in (100, 200))
    unknown = setting(0x99, 0xFFFF_FFFF)
    assert frames.settings(given + unknown + again) == {frames.INITIAL_WINDOW_SIZE: 200, 0x99: 0xFFFF_FFFF}
    assert frames.settings(b"") == {}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (setting(frames.INITIAL_WINDOW_SIZE, 1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
        (setting(frames.MAX_FRAME_SIZE, 16_383), ErrorCode.PROTOCOL_ERROR),
        (setting(frames.MAX_FRAME_SIZE, 1 << 24), ErrorCode.PROTOCOL_ERROR),
        (b"\0" * 7, ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_settings_out_of_range_or_cut_off(payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(MalformedFrameError) as e:
        frames.settings(payload)
    assert e.value.code is code


@given(st.binary(max_size=50), st.integers(0, 255), st.booleans())
def test_padding_and_priority_are_taken_off(content: bytes, padding: int, priority: bool) -> None:
    payload = bytes((padding,)) + (b"\0\0\0\x01\x10" if priority else b"") + content + b"\0" * padding
    flags = frames.PADDED | (frames.PRIORITY_FIELDS if priority else 0)
    assert frames.block_fragment(payload, flags, 0, len(payload)) == content


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd"])
def test_padding_longer_than_its_frame(payload: bytes) -> None:
    with pytest.raises(MalformedFrameError) as e:
        frames.unpadded(payload, frames.PADDED, 0, len(payload))
    assert e.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(("payload", "flags"), [(b"abcd", frames.PRIORITY_FIELDS), (b"\x02abcd\0\0", 0x28)])
def test_a_block_too_short_for_its_priority(payload: bytes, flags: int) -> None:
    with pytest.raises(MalformedFrameError) as e:
        frames.block_fragment(payload, flags, 0, len(payload))
    assert e.value.code is ErrorCode.FRAME_SIZE_ERROR
