"""Test that what goes out keeps to the room that the peer has."""

import hpack
import pytest

from lading.http2 import frames
from lading.http2.frames import DEFAULT_WINDOW, LARGEST_WINDOW, ErrorCode, MalformedFrameError
from lading.http2.headers import HeaderLane
from lading.http2.sending import Outgoing, Sender

BLOCK = HeaderLane().render(((b"a", b"b"),))


def announce(setting: int, value: int) -> bytes:
    return setting.to_bytes(2, "big") + value.to_bytes(4, "big")


def sizes(parts: list[bytes]) -> list[int]:
    return [len(part) - frames.HEADER_LENGTH for part in parts]


def outgoing(sender: Sender, size: int, stream: int = 1) -> Outgoing:
    opened = sender.opened(stream)
    opened.left = memoryview(bytes(size))
    return opened


def test_data_stops_at_the_window_and_goes_on_with_credit() -> None:
    sender = Sender()
    message = outgoing(sender, 100_000)
    sent = sender.data(message, end_stream=True)
    assert sizes(sent) == [16_384, 16_384, 16_384, 16_383]
    assert not any(part[4] for part in sent)
    for stream in (1, 0):
        assert sender.data(message, end_stream=True) == []
        sender.credited(stream, message if stream else None, 40_000)
    rest = sender.data(message, end_stream=True)
    assert sum(sizes(sent + rest)) == 100_000
    assert [part[4] for part in rest] == [0] * (len(rest) - 1) + [frames.END_STREAM]


def test_streams_share_the_connections_window() -> None:
    sender = Sender()
    first, second = outgoing(sender, 60_000, 1), outgoing(sender, 60_000, 3)
    assert sum(sizes(sender.data(first, end_stream=False) + sender.data(second, end_stream=False))) == DEFAULT_WINDOW
    assert (len(first.left), len(second.left)) == (0, 60_000 * 2 - DEFAULT_WINDOW)


def test_a_window_that_shrinks_below_what_is_on_its_way() -> None:
    sender = Sender()
    message = outgoing(sender, 50_000)
    sender.data(message, end_stream=True)
    message.left = memoryview(bytes(10))
    assert sender.announced(announce(frames.INITIAL_WINDOW_SIZE, 100), [message]) == frames.frame(frames.SETTINGS, 1, 0)
    assert message.room == 100 - 50_000
    assert sender.data(message, end_stream=True) == []
    assert sender.opened(3).room == 100


def test_frames_as_large_as_the_peer_takes_them() -> None:
    sender = Sender()
    sender.announced(announce(frames.MAX_FRAME_SIZE, 20_000), [])
    assert sizes(sender.data(outgoing(sender, 30_000), end_stream=True)) == [20_000, 10_000]


def test_a_peer_that_shrinks_its_table_is_reported_once_that_this_was_heard() -> None:
    sender, decoder = Sender(), hpack.Decoder()
    sender.announced(announce(frames.HEADER_TABLE_SIZE, 0), [])
    decoder.max_allowed_table_size = 0
    first, second = (sender.headers(1, BLOCK, end_stream=False)[frames.HEADER_LENGTH :] for _ in range(2))
    assert decoder.decode(first, raw=True) == [(b"a", b"b")]
    assert (first[1:], first[0]) == (second, 0x20)


@pytest.mark.parametrize(("stream", "increment"), [(0, 0), (1, 0), (0, LARGEST_WINDOW), (1, LARGEST_WINDOW)])
def test_credit_that_is_none_or_too_much(stream: int, increment: int) -> None:
    sender = Sender()
    with pytest.raises(MalformedFrameError) as e:
        sender.credited(stream, sender.opened(1), increment)
    assert e.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_credit_for_a_stream_that_is_over() -> None:
    sender = Sender()
    sender.credited(1, None, 5)
    assert sum(sizes(sender.data(outgoing(sender, 100_000, 3), end_stream=True))) == DEFAULT_WINDOW
