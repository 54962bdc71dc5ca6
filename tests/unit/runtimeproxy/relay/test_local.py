"""Test the answers to a client whose runtime is absent, with h2 as the client. What every end of a connection does is in
tests/unit/lading/http2/test_connection.py."""

import h2.connection
import h2.events
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.local import LocalAnswer
from tests.fakes.crossing import frames_of
from tests.fakes.wire import FREE, Peer, request_fields

MESSAGE = "the runtime at /run/x.sock cannot be reached"
HEADERS = request_fields(FREE)


def exchange(client: Peer, local: LocalAnswer, piece: int = 1 << 20) -> None:
    data = client.connection.data_to_send()
    for at in range(0, len(data), piece):
        client.receive(local.receive(data[at : at + piece]))


def goaway(client: Peer) -> h2.events.ConnectionTerminated | None:
    return next((e for e in client.events if isinstance(e, h2.events.ConnectionTerminated)), None)


def test_a_client_gets_settings_before_it_asks() -> None:
    client, local = Peer(client=True), LocalAnswer(MESSAGE)
    client.receive(local.take())
    assert any(isinstance(event, h2.events.RemoteSettingsChanged) for event in client.events)
    exchange(client, local)
    assert any(isinstance(event, h2.events.SettingsAcknowledged) for event in client.events)
    assert not local.done


@pytest.mark.parametrize("piece", [1, 10, 1 << 20])
def test_a_call_is_unavailable_and_the_client_is_sent_away(piece: int) -> None:
    client, local = Peer(client=True), LocalAnswer(MESSAGE)
    client.connection.send_headers(1, HEADERS)
    client.connection.send_data(1, prefixed(b"request"), end_stream=True)
    exchange(client, local, piece)
    seen = client.streams[1]
    assert seen.ended
    assert (seen.last(b":status"), seen.last(b"grpc-status")) == (b"200", b"14")
    assert seen.last(b"grpc-message") == MESSAGE.encode()
    ended = goaway(client)
    assert ended is not None
    assert (ended.error_code, ended.last_stream_id) == (ErrorCode.NO_ERROR, 1)
    assert local.done


def test_calls_that_came_together_are_all_answered() -> None:
    client, local = Peer(client=True), LocalAnswer(MESSAGE)
    for stream in (1, 3, 5):
        client.connection.send_headers(stream, HEADERS, end_stream=True)
    exchange(client, local)
    assert [client.streams[stream].last(b"grpc-status") for stream in (1, 3, 5)] == [b"14"] * 3
    ended = goaway(client)
    assert ended is not None
    assert ended.last_stream_id == 5


def test_an_idle_client_is_sent_away_when_the_runtime_is_back() -> None:
    client, local = Peer(client=True), LocalAnswer(MESSAGE)
    exchange(client, local)
    client.receive(local.end())
    ended = goaway(client)
    assert ended is not None
    assert (ended.error_code, ended.last_stream_id) == (ErrorCode.NO_ERROR, 0)
    assert local.receive(b"whatever it still says") == b""


SETTINGS = frames.frame(frames.SETTINGS, 0, 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.PREFACE + SETTINGS + frames.frame(frames.HEADERS, frames.END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_is_no_http2_ends_with_its_code(data: bytes, code: ErrorCode) -> None:
    local = LocalAnswer(MESSAGE)
    last = frames_of(local.receive(data))[-1]
    assert (last[3], frames.unsigned(last, frames.HEADER_LENGTH + 4)) == (frames.GOAWAY, code)
    assert local.done


@given(st.binary(max_size=400))
def test_garbage_never_raises(data: bytes) -> None:
    local = LocalAnswer(MESSAGE)
    assert local.receive(frames.PREFACE + data).startswith(SETTINGS)
