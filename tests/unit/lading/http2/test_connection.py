"""Test one end of a connection: header blocks in pieces, what may not come between them, and DATA within the peer's windows."""

from collections.abc import Mapping

import hpack
import pytest

from lading.http2 import frames
from lading.http2.connection import CREDIT, MAX_BLOCK, Connection, Stream
from lading.http2.frames import DEFAULT_WINDOW, LARGEST_WINDOW, ErrorCode, MalformedFrameError, frame
from lading.http2.headers import Fields, HeaderLane
from tests.fakes.crossing import frames_of

FIELDS = ((b":path", b"/a"), (b"x", b"y" * 50))
BLOCK = hpack.Encoder().encode(FIELDS)


class End(Connection[Stream]):
    """Accept every stream, and record what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[int, Fields] = {}
        self.resets: dict[int, int] = {}

    def accept(self, stream_id: int, fields: Fields) -> Stream:
        return self.open(Stream(stream_id))

    def receive_fields(self, stream: Stream, fields: Fields) -> None:
        self.fields[stream.id] = fields

    def receive_reset(self, stream: Stream, code: int) -> None:
        self.resets[stream.id] = code


def announce(settings: Mapping[int, int]) -> bytes:
    payload = b"".join(setting.to_bytes(2, "big") + value.to_bytes(4, "big") for setting, value in settings.items())
    return frame(frames.SETTINGS, 0, 0, payload)


def credit(stream: int, size: int) -> bytes:
    return frames.window_update(stream, size)


def sizes(sent: bytes) -> list[int]:
    return [len(part) - frames.HEADER_LENGTH for part in frames_of(sent) if part[3] == frames.DATA]


def sending(end: End, size: int, stream: int = 1) -> bytes:
    opened = end.open(Stream(stream))
    opened.unsent = memoryview(bytes(size))
    end.send(opened)
    return end.take()


# header blocks


def test_a_block_in_one_frame() -> None:
    end = End()
    end.receive(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, BLOCK))
    end.receive(frame(frames.HEADERS, frames.END_HEADERS, 3, BLOCK))
    assert (end.fields, end.streams[1].ended, end.streams[3].ended) == ({1: FIELDS, 3: FIELDS}, True, False)


@pytest.mark.parametrize("cut", [0, 1, len(BLOCK) - 1, len(BLOCK)])
def test_a_block_in_pieces(cut: int) -> None:
    """Padding and priority fields are the first frame's only, and so is the end of the stream."""
    end = End()
    first = b"\2" + bytes(5) + BLOCK[:cut] + b"\0\0"
    end.receive(frame(frames.HEADERS, frames.PADDED | frames.PRIORITY_FIELDS | frames.END_STREAM, 1, first))
    end.receive(frame(frames.CONTINUATION, 0, 1, b""))
    assert end.fields == {}
    end.receive(frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[cut:]))
    assert (end.fields, end.streams[1].ended) == ({1: FIELDS}, True)
    end.receive(frame(frames.PING, 0, 0, bytes(8)))


@pytest.mark.parametrize(
    "between",
    [
        frame(frames.PING, 0, 0, bytes(8)),
        frame(frames.HEADERS, 0, 1),
        frame(frames.DATA, 0, 1),
        frame(frames.CONTINUATION, 0, 3),
    ],
)
def test_nothing_comes_between(between: bytes) -> None:
    end = End()
    end.receive(frame(frames.HEADERS, 0, 1, BLOCK))
    with pytest.raises(MalformedFrameError) as e:
        end.receive(between)
    assert e.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_continuation_of_nothing() -> None:
    with pytest.raises(MalformedFrameError):
        End().receive(frame(frames.CONTINUATION, 0, 1))


def test_a_block_without_end() -> None:
    end, piece = End(), bytes(16_384)
    for kind in (frames.HEADERS, *[frames.CONTINUATION] * 3):
        end.receive(frame(kind, 0, 1, piece))
    with pytest.raises(MalformedFrameError) as e:
        end.receive(frame(frames.CONTINUATION, 0, 1, b"x"))
    assert e.value.code is ErrorCode.ENHANCE_YOUR_CALM
    assert len(piece) * 4 == MAX_BLOCK


def test_a_ping_is_answered_and_a_pushed_call_is_not_allowed() -> None:
    end = End()
    assert end.receive(frame(frames.PING, 0, 0, b"12345678")) == frame(frames.PING, frames.ACK, 0, b"12345678")
    with pytest.raises(MalformedFrameError):
        end.receive(frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, b"\0\0\0\2" + BLOCK))


# DATA that comes


def test_data_is_taken_without_its_padding() -> None:
    end = End()
    end.receive(frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK))
    end.receive(frame(frames.DATA, frames.PADDED, 1, b"\3" + b"whole" + bytes(3)))
    assert end.streams[1].content == b"whole"


def test_data_of_a_stream_that_the_peer_ended_or_reset_is_dropped() -> None:
    end = End()
    for stream in (1, 3):
        end.receive(frame(frames.HEADERS, frames.END_HEADERS, stream, BLOCK))
    end.receive(frame(frames.DATA, frames.END_STREAM, 1, b"whole") + frame(frames.DATA, 0, 1, b" and more"))
    end.receive(frame(frames.RST_STREAM, 0, 3, bytes((0, 0, 0, 8))) + frame(frames.DATA, 0, 3, b"late"))
    assert end.streams.keys() == {1}
    assert end.streams[1].content == b"whole"
    assert end.resets == {3: ErrorCode.CANCEL}


@pytest.mark.parametrize("stream", [0, 3])
def test_data_of_a_stream_that_was_never_opened_ends_the_connection(stream: int) -> None:
    end = End()
    end.receive(frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK))
    with pytest.raises(MalformedFrameError) as e:
        end.receive(frame(frames.DATA, 0, stream, b"x"))
    assert e.value.code is ErrorCode.PROTOCOL_ERROR


def test_credit_for_received_data_is_given_in_large_portions() -> None:
    end = End()
    end.receive(frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK))
    assert end.receive(frame(frames.DATA, 0, 1, bytes(CREDIT // 2))) == b""
    assert end.receive(frame(frames.DATA, 0, 1, bytes(CREDIT // 2))) == credit(0, CREDIT)
    assert end.receive(frame(frames.DATA, 0, 1, b"x")) == b""


# DATA that is sent


def test_data_stops_at_the_window_and_goes_on_with_credit() -> None:
    end = End()
    sent = sending(end, 100_000)
    assert sizes(sent) == [16_384, 16_384, 16_384, 16_383]
    assert not any(part[4] for part in frames_of(sent))
    assert end.receive(credit(1, 40_000)) == b""
    rest = frames_of(end.receive(credit(0, 40_000)))
    assert sum(sizes(sent + b"".join(rest))) == 100_000
    assert [part[4] for part in rest] == [0] * (len(rest) - 1) + [frames.END_STREAM]


def test_streams_share_the_connections_window() -> None:
    end = End()
    assert sum(sizes(sending(end, 60_000, 1) + sending(end, 60_000, 3))) == DEFAULT_WINDOW
    assert (len(end.streams[1].unsent), len(end.streams[3].unsent)) == (0, 60_000 * 2 - DEFAULT_WINDOW)


def test_trailers_follow_the_last_data_and_close_the_stream() -> None:
    end = End()
    stream = end.open(Stream(1))
    stream.unsent, stream.trailers = memoryview(bytes(DEFAULT_WINDOW + 1)), BLOCK
    end.send(stream)
    assert all(part[3] == frames.DATA and not part[4] for part in frames_of(end.take()))
    *_, last = frames_of(end.receive(credit(1, 1) + credit(0, 1)))
    assert (last[3], last[4]) == (frames.HEADERS, frames.END_STREAM | frames.END_HEADERS)
    assert end.streams == {}


def test_a_window_that_shrinks_below_what_is_on_its_way() -> None:
    end = End()
    sending(end, 50_000)
    assert end.receive(announce({frames.INITIAL_WINDOW_SIZE: 100})) == frame(frames.SETTINGS, frames.ACK, 0)
    assert end.streams[1].window == 100 - 50_000
    assert sizes(sending(end, 1000, 3)) == [100]
    assert sizes(end.receive(announce({frames.INITIAL_WINDOW_SIZE: 2000}))) == [900]


def test_frames_as_large_as_the_peer_takes_them() -> None:
    end = End()
    end.receive(announce({frames.MAX_FRAME_SIZE: 20_000}))
    assert sizes(sending(end, 30_000)) == [20_000, 10_000]


def test_a_peer_that_shrinks_its_table_gets_one_acknowledgement() -> None:
    end, decoder = End(), hpack.Decoder()
    end.receive(announce({frames.HEADER_TABLE_SIZE: 0}))
    decoder.max_allowed_table_size = 0
    block = HeaderLane().render(((b"a", b"b"),))
    for stream in (1, 3):
        end.send_block(stream, block, end_stream=False)
    first, second = (part[frames.HEADER_LENGTH :] for part in frames_of(end.take()))
    assert decoder.decode(first, raw=True) == [(b"a", b"b")]
    assert (first[1:], first[0]) == (second, 0x20)


@pytest.mark.parametrize(("stream", "increment"), [(0, 0), (1, 0), (0, LARGEST_WINDOW), (1, LARGEST_WINDOW)])
def test_credit_that_is_none_or_too_much(stream: int, increment: int) -> None:
    end = End()
    sending(end, 1)
    with pytest.raises(MalformedFrameError) as e:
        end.receive(credit(stream, increment))
    assert e.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_credit_for_a_stream_that_is_over() -> None:
    end = End()
    assert end.receive(credit(1, 5)) == b""
    assert sum(sizes(sending(end, 100_000, 3))) == DEFAULT_WINDOW
