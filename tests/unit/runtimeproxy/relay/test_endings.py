"""How calls end when something crosses: neither side may be left with a stream that nobody will ever end."""

import pytest
from h2.settings import SettingCodes

from runtimeproxy.relay import frames
from runtimeproxy.relay.connection import CallCancelled, CallHeld, Side
from runtimeproxy.relay.frames import ErrorCode
from runtimeproxy.relay.messages import Status, prefixed
from tests.fakes.wire import HELD, Wire

ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def streams_of(wire: Wire) -> tuple[int, int]:
    """How many streams the client and the runtime think are open."""
    return wire.client.connection.open_outbound_streams, wire.runtime.connection.open_inbound_streams


def goaway_streams(wire: Wire) -> list[int]:
    return [e.last_stream_id for e in wire.client.events if type(e).__name__ == "ConnectionTerminated"]


def test_an_answer_before_the_held_message_went_on_leaves_no_stream_at_the_runtime() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.answer(stream, b"", status=b"4")
    assert wire.client.streams[stream].last(b"grpc-status") == b"4"
    assert streams_of(wire) == (0, 0)


@pytest.mark.parametrize("path", [HELD, b"/free"])
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
    assert wire.refuse(stream, Status.FAILED_PRECONDITION, "no")
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
    assert not wire.relay._refused


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
    first, second = wire.call(), wire.call()
    wire.runtime.connection.close_connection(last_stream_id=first)
    wire.flow()
    wire.relay.announce_end()
    wire.flow()
    wire.relay.end("gone")
    wire.flow()
    assert second > first
    assert goaway_streams(wire) == [first, first, first]


def test_a_client_sees_settings_before_anything_else() -> None:
    """RFC 9113 3.4; a client that sees GOAWAY first takes the connection for broken and goes into dial back-off."""
    for announce in (True, False):
        wire = Wire(started=False)
        if announce:
            wire.relay.announce_end()
        assert wire.relay.to_client() == b""
        wire.relay.end("gone")
        first = wire.relay.to_client()
        assert (first[3], first[4]) == (frames.SETTINGS, 0)
        assert first[9 + 3] == frames.GOAWAY


def test_an_end_announced_before_the_runtimes_settings_follows_them() -> None:
    wire = Wire(started=False)
    wire.relay.announce_end()
    wire.flow()
    assert [type(e).__name__ for e in wire.client.events[:2]] == ["RemoteSettingsChanged", "SettingsAcknowledged"]
    assert goaway_streams(wire) == [frames.LARGEST_WINDOW]
    assert wire.relay.ended


def test_an_empty_frame_while_the_runtimes_window_is_below_zero() -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"x" * 1000), end_stream=False)
    wire.forward(stream)
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    wire.flow()
    wire.send(stream, b"")
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
    wire = Wire(budget=10)  # no room: the relay itself gives no credit
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


def test_a_client_that_is_reset_before_its_message_ended_leaves_nothing_behind() -> None:
    wire = Wire(max_message=1000)
    for _ in range(3):
        stream = wire.request(HELD)
        wire.send(stream, prefixed(b"x" * 1001)[:500], end_stream=False)
        assert wire.client.streams[stream].reset == ErrorCode.NO_ERROR
    assert not wire.relay._streams
    assert not wire.relay._refused
    assert streams_of(wire) == (0, 0)


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
