"""Test refused calls: the caller's answer, the reset at the runtime, and frames of both sides that cross the refusal."""

from collections.abc import Callable

import pytest
from h2.connection import H2Connection

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import GrpcStatus, prefixed
from runtimeproxy.relay import refused
from tests.fakes.crossing import frames_of
from tests.fakes.wire import HELD, TRAILER, Wire

NEW = [(b":status", b"200"), (b"x-new", b"entry")]


def test_refuse_answers_the_client_and_resets_the_runtime() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    assert wire.refuse(stream, GrpcStatus.FAILED_PRECONDITION, "GPU 3 ist vergeben: 50 %\n")
    seen = wire.client.streams[stream]
    assert seen.ended
    assert seen.last(b"grpc-status") == b"9"
    assert seen.last(b"grpc-message") == b"GPU 3 ist vergeben: 50 %25%0A"
    assert wire.runtime.streams[stream].reset == ErrorCode.CANCEL
    assert wire.runtime.streams[stream].data == b""
    wire.assert_idle()


def test_a_refusal_after_reply_headers_is_trailers() -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create")
    wire.begin_answer(stream)
    assert wire.refuse(stream, GrpcStatus.FAILED_PRECONDITION, "no")
    seen = wire.client.streams[stream]
    assert (seen.headers[1][0], seen.ended) == ((b"grpc-status", b"9"), True)
    wire.assert_idle()


def test_a_refusal_before_the_runtimes_settings_follows_them() -> None:
    wire = Wire(started=False)
    stream = wire.request(HELD)
    wire.client.connection.send_data(stream, prefixed(b"create"), end_stream=True)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    assert wire.relay.refuse(stream, GrpcStatus.FAILED_PRECONDITION, "no")
    assert wire.relay.to_client() == b""
    wire.flow()
    assert wire.client.streams[stream].last(b"grpc-status") == b"9"
    wire.assert_idle()


def end_with_data(client: H2Connection, stream: int) -> None:
    client.send_data(stream, b"late", end_stream=True)


def end_with_trailers(client: H2Connection, stream: int) -> None:
    client.send_headers(stream, [TRAILER], end_stream=True)


def cancel(client: H2Connection, stream: int) -> None:
    client.reset_stream(stream, ErrorCode.CANCEL)


@pytest.mark.parametrize(
    ("end", "crossing"), [(end_with_data, True), (end_with_trailers, True), (end_with_trailers, False), (cancel, True)]
)
def test_a_refused_call_is_forgotten_once_its_client_ended(end: Callable[[H2Connection, int], None], crossing: bool) -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    end(wire.client.connection, stream)
    last = wire.client.connection.data_to_send()
    if not crossing:
        wire.relay.receive_from_client(last)
    assert wire.relay.refuse(stream, 9, "no")
    if crossing:
        wire.relay.receive_from_client(last)
    wire.flow()
    if end is not cancel:
        assert wire.client.streams[stream].last(b"grpc-status") == b"9"
    assert wire.runtime.streams[stream].data == b""
    wire.assert_idle()


@pytest.mark.parametrize("piece", [1_000, 1 << 20])
@pytest.mark.parametrize("begun", [False, True])
def test_a_late_answer_on_a_refused_call_is_dropped_and_tables_stay_equal(begun: bool, piece: int) -> None:
    """Check an answer that crosses the refusal: its blocks add table entries, which the client never receives."""
    wire = Wire()
    first = wire.call(HELD)
    runtime = wire.runtime.connection
    if begun:
        wire.begin_answer(first)
    else:
        runtime.send_headers(first, NEW)
    runtime.send_data(first, b"d" * 10_000)
    if begun:
        runtime.send_headers(first, [(b"grpc-status", b"0"), NEW[1]], end_stream=True)
    late = runtime.data_to_send()
    assert wire.relay.refuse(first, 9, "no")
    for at in range(0, len(late), piece):
        wire.relay.receive_from_runtime(late[at : at + piece])
    wire.flow()
    seen = wire.client.streams[first]
    assert (seen.last(b"x-new"), seen.data) == (None, b"")
    for _ in range(3):
        stream = wire.call()
        runtime.send_headers(stream, NEW)
        wire.end_answer(stream)
        assert wire.client.streams[stream].last(b"x-new") == b"entry"
    wire.assert_idle()


def test_one_barrier_at_a_time_covers_the_calls_refused_before_it() -> None:
    wire = Wire()
    calls = [wire.call(HELD) for _ in range(3)]
    for stream in calls:
        assert wire.relay.refuse(stream, 9, "no")
    for left in (calls, calls[1:]):
        assert wire.relay._refused.calls == {*left}
        barrier = wire.relay.to_runtime()
        assert [frame[3] for frame in frames_of(barrier)].count(frames.SETTINGS) == 1
        wire.runtime.receive(barrier)
        wire.relay.receive_from_runtime(wire.runtime.connection.data_to_send())
    wire.flow()
    wire.assert_idle()


def test_too_many_refused_calls_without_an_end_break_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a client that does not end its side: it gets RST_STREAM (RFC 9113 8.1), and may ignore it so often only."""
    monkeypatch.setattr(refused, "MAX_REFUSED", 2)
    wire = Wire()
    for number in range(3):
        stream = wire.request(HELD)
        wire.send(stream, prefixed(b"create"), end_stream=False)
        assert wire.relay.refuse(stream, 9, "no")
        if number < 2:
            wire.flow()
            assert wire.relay.broken is None
            assert wire.client.streams[stream].reset == ErrorCode.NO_ERROR
    assert wire.relay.broken
    assert wire.relay.broken.code == ErrorCode.ENHANCE_YOUR_CALM
