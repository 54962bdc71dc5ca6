"""Test how calls pass, are held, decided and ended between two strict HTTP/2 peers."""

import pytest

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.events import CallCancelled, CallEnded, CallHeld, Side
from tests.fakes.crossing import frames_of
from tests.fakes.wire import HELD, TRAILER, Wire


def test_a_call_that_is_not_held_passes() -> None:
    wire = Wire()
    stream = wire.call(message=b"hello")
    assert wire.runtime.streams[stream].data == prefixed(b"hello")
    assert wire.runtime.streams[stream].ended
    wire.answer(stream, b"world")
    assert wire.client.streams[stream].data == prefixed(b"world")
    assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    assert wire.events == []
    wire.assert_idle()


@pytest.mark.parametrize("path", [HELD, HELD[1:]], ids=["slash", "no slash"])  # grpc-go serves both
def test_a_held_call_waits_with_its_headers_forwarded(path: bytes) -> None:
    wire = Wire()
    stream = wire.call(path, b"create", headers=[(b"grpc-timeout", b"2S"), (b"traceparent", b"00-aa-bb-01")])
    assert wire.runtime.streams[stream].last(b":path") == path
    assert wire.runtime.streams[stream].data == b""
    held = wire.held()
    assert (held.stream, held.path, held.message) == (stream, HELD, prefixed(b"create"))
    assert (held.deadline, held.traceparent) == (2.0, "00-aa-bb-01")


@pytest.mark.parametrize("message", [None, b"", b"changed", b"y" * 300_000])
def test_forward_sends_the_message_and_the_end(message: bytes | None) -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create")
    assert wire.forward(stream, message)
    assert wire.runtime.streams[stream].data == prefixed(b"create" if message is None else message)
    assert wire.runtime.streams[stream].ended
    assert not wire.forward(stream)  # exactly once
    assert not wire.refuse(stream)
    wire.answer(stream)
    assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    wire.assert_idle()


@pytest.mark.parametrize("late", [False, True])
def test_end_of_stream_may_come_before_or_after_the_decision(late: bool) -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    if not late:
        wire.send(stream, b"")
    wire.forward(stream)
    if late:
        assert not wire.runtime.streams[stream].ended
        wire.send(stream, b"")
    assert wire.runtime.streams[stream].data == prefixed(b"create")
    assert wire.runtime.streams[stream].ended
    wire.answer(stream)
    wire.assert_idle()


@pytest.mark.parametrize(("sent", "with_end"), [(3, False), (11, False), (11, True)])
def test_an_answer_ends_a_hold_and_the_runtime_gets_no_part_of_the_message(sent: int, with_end: bool) -> None:
    wire, message = Wire(), prefixed(b"create")
    stream = wire.request(HELD)
    wire.send(stream, message[:sent], end_stream=with_end)
    wire.answer(stream, b"", status=b"4")
    assert wire.client.streams[stream].last(b"grpc-status") == b"4"
    assert wire.events[-1] == CallCancelled(stream, Side.RUNTIME)
    assert not wire.forward(stream)
    assert not wire.refuse(stream)
    if not with_end:
        wire.send(stream, message[sent:])
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.reset) == (b"", False, ErrorCode.CANCEL)
    wire.assert_idle()


def test_reply_headers_alone_do_not_end_a_hold() -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create")
    wire.begin_answer(stream)
    assert wire.forward(stream)
    assert wire.runtime.streams[stream].data == prefixed(b"create")
    wire.end_answer(stream)
    wire.assert_idle()


@pytest.mark.parametrize("whole", [True, False])
def test_the_client_may_cancel_a_held_call(whole: bool) -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create") if whole else prefixed(b"create")[:-1], end_stream=False)
    wire.reset(stream)
    assert wire.events[-1] == CallCancelled(stream, Side.CLIENT)
    assert wire.runtime.streams[stream].reset == ErrorCode.CANCEL
    assert not wire.forward(stream)
    wire.assert_idle()


@pytest.mark.parametrize("trailers", [False, True])
def test_a_message_cut_short_is_the_runtimes_to_refuse(trailers: bool) -> None:
    wire, message = Wire(), prefixed(b"create")[:-2]
    stream = wire.request(HELD)
    wire.send(stream, message, end_stream=not trailers)
    if trailers:
        wire.send_trailers(stream)
    assert not any(isinstance(e, CallHeld) for e in wire.events)
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.last(TRAILER[0])) == (message, True, TRAILER[1] if trailers else None)
    wire.answer(stream, status=b"13")
    wire.assert_idle()


def test_observed_calls_report_status_and_reply() -> None:
    wire = Wire()
    good, bad, reset = wire.call(HELD), wire.call(HELD), wire.call(HELD)
    for stream in (good, bad, reset):
        wire.forward(stream, observe=True)
    wire.answer(good, b"id")
    wire.answer(bad, b"", status=b"5")
    wire.runtime.connection.reset_stream(reset)
    wire.flow()
    ended = [e for e in wire.events if isinstance(e, CallEnded)]
    assert ended == [CallEnded(good, 0, prefixed(b"id")), CallEnded(bad, 5, prefixed(b""))]
    assert wire.events[-1] == CallCancelled(reset, Side.RUNTIME)
    wire.assert_idle()


# The end of a connection


def test_goaway_of_the_runtime_cancels_the_calls_that_it_will_not_answer() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.runtime.connection.close_connection(last_stream_id=0)
    wire.flow()
    assert wire.events[-1] == CallCancelled(stream, Side.RUNTIME)
    assert not wire.forward(stream)


def test_a_second_goaway_never_names_a_later_stream() -> None:
    """Check RFC 9113 6.8; grpc-go drops every call of a connection on which it happens."""
    wire = Wire()
    first = wire.call()
    wire.call()
    wire.relay.receive_from_runtime(frames.goaway(first, ErrorCode.NO_ERROR))
    wire.relay.announce_end()
    wire.relay.end("gone")
    named = [frames.unsigned(frame, 9) for frame in frames_of(wire.relay.to_client()) if frame[3] == frames.GOAWAY]
    assert named == 3 * [first]


@pytest.mark.parametrize("greeted", [True, False])
def test_a_client_gets_settings_before_anything_else(greeted: bool) -> None:
    """Check RFC 9113 3.4; a client that gets GOAWAY first takes the connection for broken and goes into dial back-off."""
    wire = Wire(started=False)
    wire.relay.announce_end()
    assert wire.relay.to_client() == b""
    if greeted:
        wire.relay.receive_from_runtime(wire.runtime.connection.data_to_send())
    wire.relay.end("gone")
    received = frames_of(wire.relay.to_client())
    assert [frame[3] for frame in received] == [frames.SETTINGS, frames.GOAWAY, frames.PING, frames.GOAWAY]
    assert (len(received[0]) > frames.HEADER_LENGTH) is greeted  # the runtime's own


def test_an_announced_end_waits_for_open_calls_and_for_the_clients_acknowledgement() -> None:
    wire = Wire()
    stream = wire.call()
    wire.relay.announce_end()
    goaway, ping = frames_of(wire.relay.to_client())
    assert (goaway[3], goaway[9:13]) == (frames.GOAWAY, b"\x7f\xff\xff\xff")
    wire.answer(stream)
    assert not wire.relay.ended  # a call may be on its way
    wire.relay.receive_from_client(frames.frame(frames.PING, frames.ACK, 0, ping[9:]))
    assert wire.relay.ended
    assert wire.relay.to_runtime() == b""


def test_end_answers_every_open_call() -> None:
    wire = Wire()
    silent, begun, held = wire.call(), wire.call(), wire.call(HELD)
    wire.begin_answer(begun)
    wire.relay.end("the runtime at /run/x.sock is gone")
    wire.flow()
    for stream in (silent, begun, held):
        assert wire.client.streams[stream].last(b"grpc-status") == b"14"
        assert wire.client.streams[stream].ended
    assert CallCancelled(held, Side.RUNTIME) in wire.events


def test_a_client_without_the_preface_gets_goaway() -> None:
    wire = Wire(started=False)
    wire.relay.receive_from_client(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.relay.broken
    assert (wire.relay.broken.by, wire.relay.broken.code) == (Side.CLIENT, ErrorCode.PROTOCOL_ERROR)
    assert [frame[3] for frame in frames_of(wire.relay.to_client())] == [frames.SETTINGS, frames.GOAWAY]


@pytest.mark.parametrize(
    "malformed",
    [frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), frames.frame(frames.GOAWAY, 0, 0, b"1234567")],
    ids=["no block", "GOAWAY too short"],
)
def test_a_malformed_runtime_is_not_reported_as_the_clients_error(malformed: bytes) -> None:
    wire = Wire()
    wire.call()
    wire.relay.receive_from_runtime(malformed)
    assert wire.relay.broken
    assert wire.relay.broken.by is Side.RUNTIME
    text = wire.relay.broken.message
    assert wire.relay.to_client() == frames.goaway(1, ErrorCode.INTERNAL_ERROR, text)
