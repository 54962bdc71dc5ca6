"""Test the client of unary calls against `h2`, which is strict about what it is sent. What every end of a connection does with
frames, windows and header blocks is in tests/unit/lading/http2/test_connection.py."""

from collections.abc import Iterable
from struct import pack

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from lading.grpc.client import ClientConnection, Reply
from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.messages import GrpcStatus, prefixed

LIMIT = 1 << 20
PATH = b"/lading.hook.v1.Hook/Adjust"
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


class Server:
    """A server on h2: what it received, and what it sends."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)  # in force once they are acknowledged
        self.heard: dict[int, bytes] = {}
        self.fields: dict[int, dict[str, str]] = {}
        self.whole: list[int] = []

    def hears(self, data: bytes, *, credit: bool = True) -> bytes:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.RequestReceived(stream_id=int(stream), headers=list(fields)):
                    self.fields[stream] = dict(fields)  # type: ignore[arg-type]
                    self.heard[stream] = b""
                case h2.events.DataReceived(stream_id=int(stream), data=bytes(part), flow_controlled_length=int(size)):
                    self.heard[stream] += part
                    if credit:
                        self.h2.increment_flow_control_window(size)
                        self.h2.increment_flow_control_window(size, stream)
                case h2.events.StreamEnded(stream_id=int(stream)):
                    self.whole.append(stream)
        return self.h2.data_to_send()

    def answers(self, stream: int, message: bytes, trailers: Iterable[tuple[str, str]] = OK) -> bytes:
        self.h2.send_headers(stream, HEAD)
        rest = prefixed(message)
        while rest:
            size = min(len(rest), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            assert size, "the client's window is too small for an answer that it takes"
            self.h2.send_data(stream, rest[:size])
            rest = rest[size:]
        self.h2.send_headers(stream, list(trailers), end_stream=True)
        return self.h2.data_to_send()

    def fails(self, stream: int, *fields: tuple[str, str]) -> bytes:
        self.h2.send_headers(stream, [*HEAD, *fields], end_stream=True)
        return self.h2.data_to_send()


def asked(message: bytes = b"question", settings: dict[int, int] | None = None) -> tuple[ClientConnection, Server]:
    """A call that the server has heard, and both have said to it what is to be said."""
    client, server = ClientConnection(limit=LIMIT), Server(settings)
    ask(client, server, message)
    return client, server


def ask(client: ClientConnection, server: Server, message: bytes, *, credit: bool = True) -> None:
    said = client.begin(PATH, message, timeout_s=2)
    while said:
        said = client.receive(server.hears(said, credit=credit))


def answer_of(client: ClientConnection) -> Reply:
    assert client.answer is not None
    return client.answer


def test_a_call_as_grpc_has_it() -> None:
    client, server = asked()
    fields = server.fields[1]
    assert (fields[":path"], fields["te"], fields["content-type"]) == (PATH.decode(), "trailers", "application/grpc")
    assert fields["grpc-timeout"] == "2000m"
    assert server.heard[1] == prefixed(b"question")
    client.receive(server.answers(1, b"answer"))
    assert client.answer == Reply(status=GrpcStatus.OK, content=b"answer")
    assert not client.ended


def test_calls_one_after_the_other_and_the_windows_stay_whole() -> None:
    """Check answers that are together many times the window. `Server.answers` fails if a frame exceeds the window."""
    client, server = asked()
    for stream in range(1, 20, 2):
        if stream > 1:
            ask(client, server, b"q" * 100_000)
            assert server.heard[stream] == prefixed(b"q" * 100_000)
        server.hears(client.receive(server.answers(stream, b"a" * LIMIT)))
        assert answer_of(client).content == b"a" * LIMIT
    assert not client.ended


def test_an_error_has_the_servers_message() -> None:
    client, server = asked()
    client.receive(server.fails(1, ("grpc-status", "7"), ("grpc-message", "not%20yours: %C3%A9")))
    assert client.answer == Reply(status=7, message="not yours: é")
    assert not client.ended


def test_an_error_behind_an_answer_is_an_error() -> None:
    client, server = asked()
    client.receive(server.answers(1, b"half", [("grpc-status", "13")]))
    assert answer_of(client).status == GrpcStatus.INTERNAL


def test_what_is_not_grpc_is_an_error() -> None:
    client, server = asked()
    server.h2.send_headers(1, [(":status", "404"), ("content-type", "text/html")], end_stream=True)
    client.receive(server.h2.data_to_send())
    assert answer_of(client).status == GrpcStatus.UNKNOWN
    assert "404" in answer_of(client).message


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\0\0\5abc", b"\1\0\0\0\1a", b"\0\0\0\0\1aa"],
    ids=["none", "not whole", "compressed", "more than one"],
)
def test_a_reply_that_is_not_one_message(content: bytes) -> None:
    client, server = asked()
    server.h2.send_headers(1, HEAD)
    server.h2.send_data(1, content)
    server.h2.send_headers(1, OK, end_stream=True)
    client.receive(server.h2.data_to_send())
    assert answer_of(client).status == GrpcStatus.INTERNAL


def test_a_reply_over_the_limit_is_not_waited_for() -> None:
    client, server = asked()
    server.h2.send_headers(1, HEAD)
    server.h2.send_data(1, b"\0" + pack(">L", LIMIT + 1))
    client.receive(server.h2.data_to_send())
    assert answer_of(client).status == GrpcStatus.RESOURCE_EXHAUSTED
    assert client.ended


def test_a_reply_without_a_status() -> None:
    client, server = asked()
    server.h2.send_headers(1, HEAD)
    server.h2.send_data(1, prefixed(b"x"), end_stream=True)
    client.receive(server.h2.data_to_send())
    assert answer_of(client).status == GrpcStatus.INTERNAL


@pytest.mark.parametrize(
    ("code", "status"),
    [(7, GrpcStatus.UNAVAILABLE), (8, GrpcStatus.CANCELLED), (11, GrpcStatus.RESOURCE_EXHAUSTED), (2, GrpcStatus.INTERNAL)],
)
def test_a_call_that_is_reset(code: int, status: GrpcStatus) -> None:
    client, server = asked()
    server.h2.reset_stream(1, code)
    client.receive(server.h2.data_to_send())
    assert answer_of(client).status == status


def test_an_answer_to_a_question_that_is_not_whole_ends_the_connection() -> None:
    client, server = ClientConnection(limit=LIMIT), Server()
    ask(client, server, b"x" * 100_000, credit=False)
    client.receive(server.fails(1, ("grpc-status", "8")))
    assert answer_of(client).status == GrpcStatus.RESOURCE_EXHAUSTED
    assert client.ended


def test_a_server_that_goes_away_still_answers_what_it_took() -> None:
    client, server = asked()
    client.receive(frames.goaway(1, ErrorCode.NO_ERROR))
    assert client.answer is None
    assert client.ended
    client.receive(server.answers(1, b"answer"))
    assert answer_of(client).content == b"answer"


def test_a_server_that_goes_away_without_having_taken_the_call() -> None:
    client, _ = asked()
    client.receive(frames.goaway(0, ErrorCode.NO_ERROR))
    assert answer_of(client).status == GrpcStatus.UNAVAILABLE


def test_a_server_of_another_protocol_ends_the_connection() -> None:
    client, _ = asked()
    with pytest.raises(MalformedFrameError):
        client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
