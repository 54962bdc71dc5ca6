"""Test the server of unary calls against `h2`, which is strict about what it is sent. What every end of a connection does with
frames, windows and header blocks is in tests/unit/lading/http2/test_connection.py."""

import contextlib
from collections.abc import Mapping

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.grpc.server import MAX_MESSAGE, CallError, Later, Method, ServerConnection
from lading.http2.frames import (
    HEADERS,
    PREFACE,
    RST_STREAM,
    ErrorCode,
    MalformedFrameError,
    frame,
)
from lading.http2.messages import GrpcStatus, prefixed

ECHO = "/test/Echo"
FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", ECHO),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def fail(message: bytes) -> bytes:
    raise CallError(GrpcStatus.INVALID_ARGUMENT, "100 % wrong: é")


def break_(message: bytes) -> bytes:
    raise RuntimeError("a bug")


async def slowly(message: bytes) -> bytes:
    return message


LATER = "/test/Slow"
METHODS: Mapping[bytes, Method] = {
    ECHO.encode(): lambda message: message,
    b"/test/Fail": fail,
    b"/test/Break": break_,
    LATER.encode(): slowly,
}


def never(_: ServerConnection, stream: int, work: Later) -> None:
    work.close()
    raise AssertionError(f"stream {stream} was to be answered at once")


def refusing() -> ServerConnection:
    return ServerConnection(lambda _: METHODS, failed=print, later=never)


class Peer:
    """A client with a server, and what became of its calls."""

    def __init__(self, settings: Mapping[int, int] | None = None, *, credit: bool = True) -> None:
        self.failures: list[Exception] = []
        self.later: dict[int, Later] = {}
        self.server = ServerConnection(lambda _: METHODS, failed=self.failures.append, later=self.defers)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.fields: dict[int, dict[str, str]] = {}
        self.content: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.reset: dict[int, int] = {}
        self.credit = credit
        self.h2.initiate_connection()
        self.h2.update_settings(dict(settings or {}))
        self.hears(self.server.begin())
        self.talk()

    def defers(self, _: ServerConnection, stream: int, work: Later) -> None:
        self.later[stream] = work

    def calls(self, message: bytes, path: str = ECHO) -> int:
        stream = self.starts(path)
        self.sends(stream, prefixed(message), end=True)
        return stream

    def answers(self, stream: int, error: Exception | None = None) -> None:
        """End the work that a call waits for, and send its result; no one awaits in between."""
        work = self.later.pop(stream)
        result: bytes | Exception
        try:
            if error is not None:
                work.throw(error)
            work.send(None)
        except StopIteration as e:
            result = e.value
        except Exception as e:  # noqa: BLE001  as the service hands it on
            result = e
        self.hears(self.server.answer(stream, result))
        self.talk()

    def starts(self, path: str = ECHO, *more: tuple[str, str]) -> int:
        stream: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [(n, path if n == ":path" else v) for n, v in FIELDS] + list(more))
        self.talk()
        return stream

    def sends(self, stream: int, data: bytes, *, end: bool) -> None:
        while len(data) > (size := min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)):
            assert size, "the server's window is too small for a message that it takes"
            self.h2.send_data(stream, data[:size])
            data = data[size:]
        self.h2.send_data(stream, data, end_stream=end)
        self.talk()

    def talk(self) -> None:
        while data := self.h2.data_to_send():
            self.hears(self.server.receive(data))

    def hears(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    self.fields.setdefault(event.stream_id, {}).update(event.headers)  # type: ignore[arg-type]
                case h2.events.DataReceived():
                    self.content[event.stream_id] = self.content.get(event.stream_id, b"") + event.data
                    if self.credit:
                        self.h2.increment_flow_control_window(event.flow_controlled_length)
                        with contextlib.suppress(h2.exceptions.StreamClosedError):
                            self.h2.increment_flow_control_window(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self.ended.append(event.stream_id)
                case h2.events.StreamReset():
                    self.reset[event.stream_id] = event.error_code


def test_a_call_as_grpc_has_it() -> None:
    peer = Peer()
    stream = peer.calls(b"question")
    assert peer.fields[stream] == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert peer.content[stream] == prefixed(b"question")
    assert peer.ended == [stream]


@pytest.mark.long
def test_many_calls_and_the_windows_stay_whole() -> None:
    """Check requests that are together many times the connection's window. `Peer.sends` fails if a frame exceeds the
    window."""
    peer = Peer()
    for size in (0, 1, 100_000, MAX_MESSAGE, MAX_MESSAGE):
        stream = peer.calls(b"x" * size)
        assert peer.content.pop(stream) == prefixed(b"x" * size)


def test_calls_that_come_in_each_other() -> None:
    peer = Peer()
    one, other = peer.starts(), peer.starts()
    peer.sends(other, prefixed(b"other")[:3], end=False)
    peer.sends(one, prefixed(b"one"), end=True)
    peer.sends(other, prefixed(b"other")[3:], end=True)
    assert [peer.content[one], peer.content[other]] == [prefixed(b"one"), prefixed(b"other")]
    assert peer.ended == [one, other]


def test_an_answer_larger_than_the_window_waits_for_credit() -> None:
    peer = Peer(credit=False)
    stream = peer.calls(b"x" * 100_000)
    assert len(peer.content[stream]) == 65_535
    peer.h2.increment_flow_control_window(10, stream)
    peer.talk()
    assert len(peer.content[stream]) == 65_535
    peer.h2.increment_flow_control_window(40_000, stream)
    peer.h2.increment_flow_control_window(40_000)
    peer.talk()
    assert peer.content[stream] == prefixed(b"x" * 100_000)
    assert peer.ended == [stream]


@pytest.mark.parametrize(("path", "code"), [("/test/Fail", 3), ("/test/Break", 2), ("/test/Later", 12)])
def test_an_error_is_its_calls_own(path: str, code: int) -> None:
    peer = Peer()
    stream = peer.calls(b"", path)
    assert peer.fields[stream]["grpc-status"] == str(code)
    assert peer.content.get(stream) is None
    assert [type(e) for e in peer.failures] == ([RuntimeError] if path == "/test/Break" else [])
    if path == "/test/Fail":
        assert peer.fields[stream]["grpc-message"] == "100 %25 wrong: %C3%A9"
    assert peer.fields[peer.calls(b"")]["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 3), (b"\0\0\0\0\5abc", 3), (b"\0\0\0\0\1aa", 3), (b"\1\0\0\0\1a", 12)],
    ids=["none", "not whole", "more than one", "compressed"],
)
def test_a_request_that_is_not_one_message(content: bytes, code: int) -> None:
    peer = Peer()
    stream = peer.starts()
    peer.sends(stream, content, end=True)
    assert peer.fields[stream]["grpc-status"] == str(code)


def test_a_request_over_the_limit_is_not_waited_for() -> None:
    peer = Peer()
    stream = peer.starts()
    peer.sends(stream, b"\0" + b"\xff" * (MAX_MESSAGE + 5), end=False)
    assert peer.fields[stream]["grpc-status"] == "8"
    assert peer.fields[peer.calls(b"")]["grpc-status"] == "0"


def test_another_content_type() -> None:
    peer = Peer()
    stream: int = peer.h2.get_next_available_stream_id()
    peer.h2.send_headers(stream, [(n, "text/html" if n == "content-type" else v) for n, v in FIELDS], end_stream=True)
    peer.talk()
    assert peer.fields[stream]["grpc-status"] == "13"


def test_a_call_that_is_given_up_is_forgotten() -> None:
    peer = Peer(credit=False)
    stream = peer.calls(b"x" * 100_000)
    peer.h2.reset_stream(stream)
    peer.h2.increment_flow_control_window(100_000)
    peer.talk()
    assert len(peer.content[stream]) == 65_535
    assert peer.fields[peer.calls(b"")]["grpc-status"] == "0"


def test_more_calls_than_are_taken_are_refused() -> None:
    """h2 would not send them: it is told the limit."""
    peer = Peer()
    block = peer.h2.encoder.encode(FIELDS)
    said = b"".join(peer.server.receive(frame(HEADERS, 4, stream, block)) for stream in range(1, 2 * 257, 2))
    assert said == frame(RST_STREAM, 0, 2 * 257 - 1, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))


# answers that come later


def test_a_call_is_answered_later_and_others_meanwhile() -> None:
    peer = Peer()
    slow, other = peer.calls(b"slow", LATER), peer.calls(b"other")
    assert peer.ended == [other]
    assert slow not in peer.fields
    assert peer.server.waiting
    peer.answers(slow)
    assert peer.content[slow] == prefixed(b"slow")
    assert peer.fields[slow] == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert peer.ended == [other, slow]
    assert not peer.server.waiting


@pytest.mark.parametrize(("error", "code", "told"), [(CallError(GrpcStatus.UNAVAILABLE, "no"), 14, 0), (RuntimeError(), 2, 1)])
def test_a_later_error_is_its_calls_own(error: Exception, code: int, told: int) -> None:
    peer = Peer()
    stream = peer.calls(b"", LATER)
    peer.answers(stream, error)
    assert peer.fields[stream]["grpc-status"] == str(code)
    assert len(peer.failures) == told
    assert peer.fields[peer.calls(b"")]["grpc-status"] == "0"


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")])
def test_the_answer_of_a_call_that_was_given_up_goes_nowhere(error: Exception | None) -> None:
    peer = Peer()
    stream = peer.calls(b"slow", LATER)
    peer.h2.reset_stream(stream)
    peer.talk()
    assert not peer.server.waiting
    work = peer.later[stream]
    assert peer.server.answer(stream, error or b"slow") == b""
    assert peer.failures == ([error] if error else [])  # the error is reported all the same
    work.close()


def test_what_comes_behind_a_whole_request_is_not_part_of_it() -> None:
    """A client may send no more; one that does must not have its call asked twice."""
    peer = Peer()
    stream = peer.calls(b"slow", LATER)
    assert peer.server.receive(frame(0, 1, stream, prefixed(b"more"))) == b""
    assert list(peer.later) == [stream]
    peer.answers(stream)
    assert peer.content[stream] == prefixed(b"slow")


def test_a_later_answer_waits_for_credit_too() -> None:
    peer = Peer(credit=False)
    stream = peer.calls(b"x" * 100_000, LATER)
    peer.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 70_000})
    peer.talk()
    peer.answers(stream)
    assert len(peer.content[stream]) == 65_535  # the credit of the connection
    assert not peer.server.waiting  # the server waits for its client only
    peer.h2.increment_flow_control_window(1 << 20)
    peer.h2.increment_flow_control_window(1 << 20, stream)
    peer.talk()
    assert peer.content[stream] == prefixed(b"x" * 100_000)
    assert peer.ended == [stream]


@given(st.lists(st.tuples(st.sampled_from(["at once", "later", "end", "give up"]), st.integers(0, 99)), max_size=30))
def test_calls_answered_at_once_later_or_never_do_not_disturb_each_other(steps: list[tuple[str, int]]) -> None:
    peer = Peer()
    asked: dict[int, bytes] = {}
    given_up: set[int] = set()
    for step, number in steps:
        match step:
            case "at once":
                asked[peer.calls(b"%d" % number)] = b"%d" % number
            case "later":
                asked[peer.calls(b"x" * 1000 * number, LATER)] = b"x" * 1000 * number
            case "end" if peer.later:
                peer.answers(sorted(peer.later)[number % len(peer.later)])
            case "give up" if open_ := sorted(peer.later.keys() - given_up):
                stream = open_[number % len(open_)]
                given_up.add(stream)
                peer.h2.reset_stream(stream)
                peer.talk()
    assert peer.server.waiting == bool(peer.later.keys() - given_up)
    for stream in sorted(peer.later):
        peer.answers(stream)
    assert peer.content == {stream: prefixed(message) for stream, message in asked.items() if stream not in given_up}
    assert sorted(peer.ended) == sorted(asked.keys() - given_up)
    assert peer.failures == []


def test_the_end_says_what_was_taken() -> None:
    peer = Peer()
    stream = peer.calls(b"")
    (event,) = peer.h2.receive_data(peer.server.farewell())
    assert isinstance(event, h2.events.ConnectionTerminated)
    assert (event.error_code, event.last_stream_id) == (0, stream)


@pytest.mark.parametrize("streams", [(2,), (3, 1)], ids=["a server's own", "an earlier one"])
def test_a_stream_that_a_client_may_not_open_ends_the_connection(streams: tuple[int, ...]) -> None:
    server = refusing()
    server.receive(PREFACE)
    with pytest.raises(MalformedFrameError):
        server.receive(b"".join(frame(HEADERS, 4, stream, b"\x88") for stream in streams))


def test_what_does_not_begin_as_http2() -> None:
    with pytest.raises(MalformedFrameError):
        refusing().receive(b"GET / HTTP/1.1\r\n\r\n")
