"""A large DATA frame goes on before it is whole, and nothing of the relay's own gets into it."""

from lading.http2 import frames
from lading.http2.messages import prefixed
from tests.fakes.wire import HELD, Wire

LARGE = 12_000  # bytes of a frame; the peers allow 16,384


def begin_reply(wire: Wire, stream: int, *, trailers: bool = True) -> bytes:
    """The runtime's answer to the call as bytes that have not reached the relay yet; its HEADERS have."""
    wire.runtime.connection.send_headers(stream, [(b":status", b"200")])
    wire.flow()
    wire.runtime.connection.send_data(stream, b"d" * LARGE, end_stream=not trailers)
    if trailers:
        wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
    reply: bytes = wire.runtime.connection.data_to_send()
    return reply


def test_the_beginning_of_a_frame_does_not_wait_for_its_end() -> None:
    wire = Wire()
    stream = wire.call()
    reply = begin_reply(wire, stream)
    for piece in (reply[:100], reply[100:101], reply[101:5_000], reply[5_000:]):
        wire.relay.receive_from_runtime(piece)
        said = wire.relay.to_client()
        assert said == piece
        wire.client.receive(said)
    assert wire.client.streams[stream].data == b"d" * LARGE
    assert wire.client.streams[stream].ended
    assert wire.relay.open_calls == 0


def test_a_header_in_pieces_is_put_together_first() -> None:
    wire = Wire()
    reply = begin_reply(wire, wire.call())
    wire.relay.receive_from_runtime(reply[: frames.HEADER_LENGTH - 1])
    assert wire.relay.to_client() == b""
    wire.relay.receive_from_runtime(reply[frames.HEADER_LENGTH - 1 : 50])
    assert wire.relay.to_client() == reply[:50]


def test_what_the_relay_says_waits_for_the_end_of_the_frame() -> None:
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


def test_a_frame_may_end_its_call() -> None:
    wire = Wire()
    stream = wire.call()
    reply = begin_reply(wire, stream, trailers=False)
    wire.relay.receive_from_runtime(reply[:500])
    assert wire.relay.open_calls == 1
    wire.relay.receive_from_runtime(reply[500:])
    assert wire.relay.open_calls == 0
    assert wire.client.streams[stream].headers
    wire.flow()
    assert wire.client.streams[stream].ended


def test_a_frame_that_the_runtime_did_not_end_is_the_last_thing_said() -> None:
    wire = Wire()
    stream = wire.call()
    reply = begin_reply(wire, stream)
    wire.relay.receive_from_runtime(reply[:6_000])
    assert wire.relay.to_client() == reply[:6_000]
    wire.relay.end("the runtime closed the connection")
    assert wire.relay.to_client() == b""
    assert wire.relay.broken


def test_an_observed_reply_is_kept_until_it_is_whole() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.forward(stream, observe=True)
    reply = begin_reply(wire, stream)
    wire.relay.receive_from_runtime(reply[:6_000])
    assert wire.relay.to_client() == b""
    wire.relay.receive_from_runtime(reply[6_000:])
    wire.flow()
    assert wire.client.streams[stream].data == b"d" * LARGE


def test_a_refused_calls_late_reply_is_dropped_whole() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    reply = begin_reply(wire, stream)
    wire.relay.refuse(stream, 9, "no")
    for at in range(0, len(reply), 1_000):
        wire.relay.receive_from_runtime(reply[at : at + 1_000])
    wire.flow()
    assert wire.client.streams[stream].data == b""
    again = wire.call(message=b"q")
    wire.answer(again, b"a")
    assert wire.client.streams[again].data == prefixed(b"a")
    assert wire.relay.broken is None
