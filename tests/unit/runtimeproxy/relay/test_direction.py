"""Test how frames and header blocks of one direction pass: in pieces, re-encoded, or as far as they came."""

import pytest
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.direction import LARGE_SLICE, MAX_BLOCK, Direction
from runtimeproxy.relay.events import CallCancelled, Side
from tests.fakes.wire import HELD, Wire

LARGE = 12_000  # bytes of a frame; the peers allow 16,384
PING = frames.frame(frames.PING, 0, 0, b"12345678")


# Frames that pass, and frames that are replaced


@pytest.mark.parametrize("size", [0, LARGE_SLICE - 10, LARGE_SLICE - 9])
def test_bytes_around_replaced_frames_pass_and_large_slices_are_not_copied(size: int) -> None:
    replaced = {0: b"", 1: b"instead", 2: None}
    direction = Direction(lambda *_: None, {frames.PING: lambda _, __, stream, *___: replaced[stream]})
    direction.reader.max_frame_size = 1 << 20
    first, second, third = (frames.frame(frames.PING, 0, stream, b"12345678") for stream in range(3))
    large = frames.frame(0x99, 0, 0, bytes(size))
    direction.pump(third + first + second + large)
    assert [type(part) for part in direction.out] == [bytes, bytes, memoryview if len(large) >= LARGE_SLICE else bytes]
    assert direction.take() == third + b"instead" + large
    assert direction.take() == b""


def test_a_buffer_without_replaced_frames_is_forwarded_itself() -> None:
    direction = Direction(lambda *_: None, {})
    direction.pump(PING * 2)
    (forwarded,) = direction.out
    assert forwarded == PING * 2
    assert direction.take() is forwarded


def test_a_frame_may_be_as_large_as_its_receiver_announced() -> None:
    wire = Wire()
    for peer in (wire.client, wire.runtime):
        wire.announce(peer, {SettingCodes.MAX_FRAME_SIZE: 30_000})
    stream = wire.call(message=b"x" * 25_000)
    wire.answer(stream, b"y" * 25_000)
    assert wire.runtime.streams[stream].data == prefixed(b"x" * 25_000)
    assert wire.client.streams[stream].data == prefixed(b"y" * 25_000)
    wire.assert_idle()


# DATA frames that are forwarded before they are complete


def begin_reply(wire: Wire, stream: int, *, trailers: bool = True) -> bytes:
    """Return the runtime's DATA and trailers, which have not reached the relay yet; its HEADERS have."""
    wire.begin_answer(stream)
    wire.runtime.connection.send_data(stream, b"d" * LARGE, end_stream=not trailers)
    if trailers:
        wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
    reply: bytes = wire.runtime.connection.data_to_send()
    return reply


@pytest.mark.parametrize("trailers", [True, False])
def test_the_beginning_of_a_frame_does_not_wait_for_its_end(trailers: bool) -> None:
    wire = Wire()
    stream = wire.call()
    reply = begin_reply(wire, stream, trailers=trailers)
    for piece in (reply[:100], reply[100:101], reply[101:5_000], reply[5_000:]):
        assert wire.relay.open_calls == 1
        wire.relay.receive_from_runtime(piece)
        forwarded = wire.relay.to_client()
        assert forwarded == piece
        wire.client.receive(forwarded)
    assert wire.client.streams[stream].data == b"d" * LARGE
    assert wire.client.streams[stream].ended
    assert wire.relay.open_calls == 0


def test_a_frame_header_in_pieces_is_put_together_first() -> None:
    wire = Wire()
    reply = begin_reply(wire, wire.call())
    wire.relay.receive_from_runtime(reply[: frames.HEADER_LENGTH - 1])
    assert wire.relay.to_client() == b""
    wire.relay.receive_from_runtime(reply[frames.HEADER_LENGTH - 1 : 50])
    assert wire.relay.to_client() == reply[:50]


def test_the_relays_own_frames_wait_for_the_end_of_the_frame() -> None:
    wire = Wire()
    stream, held = wire.call(), wire.call(HELD)
    reply = begin_reply(wire, stream)
    wire.relay.receive_from_runtime(reply[:6_000])
    wire.client.receive(wire.relay.to_client())
    wire.relay.refuse(held, 9, "no")
    assert wire.relay.to_client() == b""
    wire.relay.receive_from_runtime(reply[6_000:])
    wire.flow()
    assert wire.client.streams[stream].data == b"d" * LARGE
    assert wire.client.streams[held].last(b"grpc-status") == b"9"
    again = begin_reply(wire, wire.call())
    for piece in (again[:6_000], again[6_000:]):
        wire.relay.receive_from_runtime(piece)
        assert wire.relay.to_client() == piece  # the relay's own frames come once


def test_nothing_follows_a_frame_that_the_runtime_did_not_complete() -> None:
    wire = Wire()
    stream = wire.call()
    reply = begin_reply(wire, stream)
    wire.relay.receive_from_runtime(reply[:6_000])
    assert wire.relay.to_client() == reply[:6_000]
    wire.relay.end("the runtime closed the connection")
    assert wire.relay.to_client() == b""
    assert wire.relay.broken


def test_an_observed_reply_is_kept_until_it_is_complete() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.forward(stream, observe=True)
    reply = begin_reply(wire, stream)
    wire.relay.receive_from_runtime(reply[:6_000])
    assert wire.relay.to_client() == b""
    wire.relay.receive_from_runtime(reply[6_000:])
    wire.flow()
    assert wire.client.streams[stream].data == b"d" * LARGE


# Header blocks


def test_a_header_block_in_pieces_with_padding_and_priority() -> None:
    wire = Wire()
    big = [(b"x-big", b"v" * 40_000)]
    stream = wire.call(HELD, headers=big)
    assert wire.runtime.streams[stream].last(b"x-big") == b"v" * 40_000
    wire.forward(stream)
    wire.runtime.connection.send_headers(stream, [(b":status", b"200"), *big])
    wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0"), *big], end_stream=True)
    wire.flow()
    assert wire.client.streams[stream].last(b"x-big") == b"v" * 40_000
    padded = wire.request(HELD)
    wire.client.connection.prioritize(padded, weight=7)
    wire.client.connection.send_data(padded, prefixed(b"padded"), end_stream=True, pad_length=200)
    wire.flow()
    assert wire.held().message == prefixed(b"padded")
    wire.forward(padded)
    assert wire.runtime.streams[padded].data == prefixed(b"padded")
    wire.answer(padded)
    wire.assert_idle()


@pytest.mark.parametrize("sizes", [(0,), (64,), (4096,), (65_536,), (65_536, 10_000)])
def test_header_table_sizes_change_both_ways(sizes: tuple[int, ...]) -> None:
    wire = Wire()
    for peer in (wire.client, wire.runtime):
        for size in sizes:
            stream = wire.call(HELD)
            wire.forward(stream)
            wire.answer(stream)  # each side announces that it uses the former size
            wire.announce(peer, {SettingCodes.HEADER_TABLE_SIZE: size})
        stream = wire.call(HELD)
        wire.refuse(stream)  # the first block after the change is the relay's own; h2 insists on the size update in it
        assert wire.client.streams[stream].last(b"grpc-status") == b"9"
        for number in range(3):
            stream = wire.call(headers=[(b"x-number", b"%d" % number)])
            wire.answer(stream)
            assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    wire.assert_idle()


def test_a_size_update_that_a_re_encoded_direction_dropped_is_made_up_for() -> None:
    wire = Wire()
    late = wire.call(HELD)
    wire.runtime.connection.send_headers(late, [(b":status", b"200")])
    crossing = wire.runtime.connection.data_to_send()
    wire.relay.refuse(late, 9, "no")
    wire.relay.receive_from_runtime(crossing)  # replies are re-encoded from here on
    wire.flow()
    # The runtime chooses a smaller table by itself: its update is not passed on, so the client's table stays large.
    wire.runtime.connection.encoder.header_table_size = 100
    wire.answer(wire.call())
    wire.announce(wire.client, {SettingCodes.HEADER_TABLE_SIZE: 2000})
    stream = wire.call()
    wire.answer(stream)  # the client insists on hearing that its table shrinks
    assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    assert CallCancelled(late, Side.RUNTIME) not in wire.events
    wire.assert_idle()


# Malformed bytes

CONTINUATION = frames.frame(frames.CONTINUATION, 0, 1, bytes(16_384))
MALFORMED = {
    "no block": (frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS on stream 0": (frames.frame(frames.HEADERS, 4, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION without HEADERS": (frames.frame(frames.CONTINUATION, 4, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "block interrupted": (frames.frame(frames.HEADERS, 0, 1, b"\x82") + PING, ErrorCode.PROTOCOL_ERROR),
    "block begun again": (frames.frame(frames.HEADERS, 0, 1, b"\x82") * 2, ErrorCode.PROTOCOL_ERROR),
    "block of two streams": (
        frames.frame(frames.HEADERS, 0, 3, b"\x82") + frames.frame(frames.CONTINUATION, 4, 1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "block too large": (frames.frame(frames.HEADERS, 0, 1) + CONTINUATION * (MAX_BLOCK // 16_384), ErrorCode.ENHANCE_YOUR_CALM),
    "padding too long": (frames.frame(frames.HEADERS, 8 | 4, 1, b"\x09\x82"), ErrorCode.PROTOCOL_ERROR),
    "PING too short": (frames.frame(frames.PING, 0, 0, b"7"), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS cut off": (frames.frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "frame too large": (frames.frame(frames.DATA, 0, 1, b"x" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
    "PUSH_PROMISE": (frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("data", "code"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_frames_end_the_connection_with_their_code(data: bytes, code: ErrorCode) -> None:
    wire = Wire()
    wire.relay.receive_from_client(data)
    assert wire.relay.broken
    assert (wire.relay.broken.by, wire.relay.broken.code) == (Side.CLIENT, code)
    assert wire.relay.to_client()[3] == frames.GOAWAY
