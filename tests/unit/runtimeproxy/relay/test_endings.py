"""How calls end when something crosses: neither side may be left with a stream that no one will ever end."""

import pytest
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.frames import ErrorCode, FrameReader
from lading.http2.messages import GrpcStatus, prefixed
from runtimeproxy.relay.events import CallCancelled, CallHeld, Side
from tests.fakes.wire import FREE, HELD, Wire

ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def streams_of(wire: Wire) -> tuple[int, int]:
    """How many streams the client and the runtime think are open."""
    return wire.client.connection.open_outbound_streams, wire.runtime.connection.open_inbound_streams


def kinds(data: bytes) -> list[tuple[int, bytes]]:
    """Return the type and payload of each frame."""
    found = FrameReader().frames(data)
    return [(kind, data[start + frames.HEADER_LENGTH : end]) for kind, _, _, start, end in found]


def test_an_answer_before_the_held_message_went_on_leaves_no_stream_at_the_runtime() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.answer(stream, b"", status=b"4")
    assert wire.client.streams[stream].last(b"grpc-status") == b"4"
    assert streams_of(wire) == (0, 0)


@pytest.mark.parametrize("path", [HELD, FREE])
def test_an_answer_before_queued_data_went_on_leaves_no_stream_at_the_runtime(path: bytes) -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    first = wire.call(HELD, b"x" * 60_000)
    wire.forward(first)
    stream = wire.call(path, b"y" * 30_000)
    wire.forward(stream)
    wire.answer(stream, b"")
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.flow()
    wire.answer(first)
    assert streams_of(wire) == (0, 0)
    assert wire.connection_windows() == (frames.DEFAULT_WINDOW, frames.DEFAULT_WINDOW)


def test_a_request_with_a_hole_does_not_end_as_if_it_were_whole() -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    first = wire.call(HELD, b"x" * 60_000)
    wire.forward(first)
    stream = wire.request()
    wire.send(stream, prefixed(b"y" * 30_000), end_stream=False)
    wire.answer(stream, b"")  # most of it waits for the runtime's window
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.send(stream, b"")
    seen = wire.runtime.streams[stream]
    assert (seen.ended, seen.reset) == (False, ErrorCode.CANCEL)
    wire.answer(first)
    assert streams_of(wire) == (0, 0)
    assert wire.connection_windows() == (frames.DEFAULT_WINDOW, frames.DEFAULT_WINDOW)


@pytest.mark.parametrize("taken", [3, 11])
def test_nor_does_a_held_one(taken: int) -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create")[:taken], end_stream=False)
    wire.answer(stream, b"", status=b"4")
    wire.send(stream, prefixed(b"create")[taken:])
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.reset) == (b"", False, ErrorCode.CANCEL)
    assert streams_of(wire) == (0, 0)


def test_reply_headers_alone_do_not_end_a_hold() -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create")
    wire.runtime.connection.send_headers(stream, ANSWER)
    wire.flow()
    assert wire.forward(stream)
    assert wire.runtime.streams[stream].data == prefixed(b"create")
    wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
    wire.flow()
    assert streams_of(wire) == (0, 0)


def test_a_refusal_after_reply_headers_is_trailers() -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create")
    wire.runtime.connection.send_headers(stream, ANSWER)
    wire.flow()
    assert wire.refuse(stream, GrpcStatus.FAILED_PRECONDITION, "no")
    seen = wire.client.streams[stream]
    assert (seen.headers[1][0], seen.ended) == ((b"grpc-status", b"9"), True)
    assert streams_of(wire) == (0, 0)


def test_trailers_of_a_client_that_cut_its_message_short_reach_the_runtime() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create")[:-1], end_stream=False)
    wire.client.connection.send_headers(stream, [(b"x-checksum", b"1")], end_stream=True)
    wire.flow()
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.last(b"x-checksum")) == (prefixed(b"create")[:-1], True, b"1")
    assert not any(isinstance(e, CallHeld) for e in wire.events)
    wire.answer(stream, status=b"13")
    assert streams_of(wire) == (0, 0)
    assert not wire.relay._streams


def test_a_refusal_after_the_clients_trailers_is_forgotten() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    wire.client.connection.send_headers(stream, [(b"x-checksum", b"1")], end_stream=True)
    wire.flow()
    wire.refuse(stream)
    assert not wire.relay._streams
    assert not wire.relay._refused.calls


def test_a_path_without_its_slash_is_held_too() -> None:
    """grpc-go serves it like the one with a slash."""
    wire = Wire()
    stream = wire.call(HELD[1:])
    assert wire.held().path == HELD
    assert wire.runtime.streams[stream].last(b":path") == HELD[1:]
    assert wire.runtime.streams[stream].data == b""


def test_a_second_goaway_never_names_a_later_stream() -> None:
    """RFC 9113 6.8; grpc-go drops every call of a connection on which it happens."""
    wire = Wire()
    first = wire.call()
    wire.call()
    wire.relay.receive_from_runtime(frames.goaway(first, ErrorCode.NO_ERROR))
    wire.relay.announce_end()
    wire.relay.end("gone")
    named = [payload[:4] for kind, payload in kinds(wire.relay.to_client()) if kind == frames.GOAWAY]
    assert named == 3 * [first.to_bytes(4, "big")]


@pytest.mark.parametrize("greeted", [True, False])
def test_a_client_sees_settings_before_anything_else(greeted: bool) -> None:
    """RFC 9113 3.4; a client that sees GOAWAY first takes the connection for broken and goes into dial back-off."""
    wire = Wire(started=False)
    wire.relay.announce_end()
    assert wire.relay.to_client() == b""
    if greeted:
        wire.relay.receive_from_runtime(wire.runtime.connection.data_to_send())
    wire.relay.end("gone")
    seen = kinds(wire.relay.to_client())
    assert [kind for kind, _ in seen] == [frames.SETTINGS, frames.GOAWAY, frames.PING, frames.GOAWAY]
    assert bool(seen[0][1]) is greeted  # the runtime's own


def test_a_refusal_before_the_runtimes_settings_follows_them() -> None:
    wire = Wire(started=False)
    stream = wire.request(HELD)
    wire.client.connection.send_data(stream, prefixed(b"create"), end_stream=True)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    assert wire.relay.refuse(stream, GrpcStatus.FAILED_PRECONDITION, "no")
    assert wire.relay.to_client() == b""
    wire.flow()
    assert wire.client.streams[stream].last(b"grpc-status") == b"9"
    assert not wire.relay._streams


@pytest.mark.parametrize("greeted", [True, False])
def test_credit_that_was_not_said_is_not_used(greeted: bool) -> None:
    """Credit is sent to the client together with the runtime's frames; a runtime that sends none would make it pile up."""
    wire = Wire(started=greeted)
    stream = wire.request(HELD)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    wire.relay.receive_from_client(frames.frame(frames.DATA, 0, stream, prefixed(b"")))
    wire.relay.refuse(stream, 9, "no")
    piece = frames.frame(frames.DATA, 0, stream, b"x" * 16_000)
    wire.relay.receive_from_client(4 * piece)
    assert wire.relay.broken is None
    wire.relay.receive_from_client(piece)
    assert (wire.relay.broken is None) is greeted


def test_it_counts_as_soon_as_it_is() -> None:
    wire = Wire(started=False)
    stream = wire.request(HELD)
    wire.client.connection.send_data(stream, prefixed(b"x" * 10_000), end_stream=True)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    wire.flow()
    wire.forward(stream)
    wire.answer(stream)
    assert wire.relay._flow._client_room == wire.client.connection.outbound_flow_control_window == frames.DEFAULT_WINDOW


def test_an_empty_frame_while_the_runtimes_window_is_below_zero() -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"x" * 1000), end_stream=False)
    wire.forward(stream)
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    wire.relay.receive_from_runtime(wire.runtime.connection.data_to_send())
    wire.client.connection.end_stream(stream)  # (h2 itself takes no empty frame then, so before the SETTINGS are acknowledged)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    wire.flow()
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended) == (prefixed(b"x" * 1000), True)
    wire.runtime.credit()
    wire.answer(stream)
    assert wire.connection_windows() == (frames.DEFAULT_WINDOW, frames.DEFAULT_WINDOW)


@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_a_window_smaller_than_the_prefix(window: int) -> None:
    wire = Wire()
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    wire.flow()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"))
    assert wire.held().message == prefixed(b"create")
    wire.forward(stream)
    assert wire.runtime.streams[stream].data == prefixed(b"create")
    wire.answer(stream)
    assert streams_of(wire) == (0, 0)


@pytest.mark.parametrize("whole", [True, False])
def test_data_beyond_the_window_of_a_held_stream_ends_the_connection(whole: bool) -> None:
    """The connection's window is given back at once, so only the stream's bounds what a held call can pile up."""
    wire = Wire(budget=10)
    assert wire.budget.reserve(10, lambda: None)
    stream = wire.request(HELD)
    wire.flow()
    head = prefixed(b"") if whole else prefixed(b"x" * 1_000_000)[:5]
    piece = frames.frame(frames.DATA, 0, stream, b"p" * 16_000)
    wire.relay.receive_from_client(frames.frame(frames.DATA, 0, stream, head) + 4 * piece)
    assert wire.relay.broken is None
    wire.relay.receive_from_client(piece)
    assert wire.relay.broken
    assert (wire.relay.broken.by, wire.relay.broken.code) == (Side.CLIENT, ErrorCode.FLOW_CONTROL_ERROR)


def test_the_window_of_a_held_stream_grows_with_the_runtimes_settings_and_credit() -> None:
    wire = Wire(budget=1_000_000)
    assert wire.budget.reserve(1_000_000, lambda: None)  # no room: the relay itself gives no credit
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
    wire.flow()
    stream = wire.request(HELD)
    wire.flow()
    wire.runtime.connection.increment_flow_control_window(5_000, stream)
    wire.runtime.connection.increment_flow_control_window(200_000)
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 110_000})
    wire.flow()
    wire.send(stream, prefixed(b"x" * 200_000)[:115_000], end_stream=False)
    assert wire.relay.broken is None
    assert wire.client.connection.local_flow_control_window(stream) == 0


def test_a_size_update_that_a_re_encoded_direction_swallowed_is_made_up_for() -> None:
    wire = Wire()
    late = wire.call(HELD)
    wire.runtime.connection.send_headers(late, ANSWER)
    crossing = wire.runtime.connection.data_to_send()
    wire.relay.refuse(late, 9, "no")
    wire.relay.receive_from_runtime(crossing)  # replies are re-encoded from here on
    wire.flow()
    # The runtime chooses a smaller table by itself: its update is not passed on, so the client's table stays large.
    wire.runtime.connection.encoder.header_table_size = 100
    stream = wire.call()
    wire.answer(stream)
    wire.client.connection.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2000})
    wire.flow()
    stream = wire.call()
    wire.answer(stream)  # the client insists on hearing that its table shrinks
    assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    assert CallCancelled(late, Side.RUNTIME) not in wire.events
