"""Test how the message of a held call takes room and credit while it comes, and gives both back however it ends."""

from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.messages import prefixed
from runtimeproxy.relay.connection import Relay
from tests.fakes.wire import HELD, Wire

SHORT = 200_000  # bytes; enough for one of the messages below


def test_too_large_a_message_is_refused_in_grpc_gos_words() -> None:
    wire = Wire(max_message=1000)
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"x" * 1001), end_stream=False)
    seen = wire.client.streams[stream]
    assert seen.last(b"grpc-status") == b"8"
    assert seen.last(b"grpc-message") == b"grpc: received message larger than max (1001 vs. 1000)"


def test_the_hold_budget_delays_a_call_and_lets_it_go_on() -> None:
    wire = Wire(budget=SHORT)
    first = wire.call(HELD, b"a" * 150_000)
    second = wire.request(HELD)
    message = prefixed(b"b" * 120_000)
    wire.client.connection.send_data(second, message[:16_000])
    wire.flow()
    free = wire.client.connection.local_flow_control_window(second)
    assert free == frames.DEFAULT_WINDOW - 16_000  # the stream got no credit, so memory is bounded
    assert wire.client.connection.outbound_flow_control_window == frames.DEFAULT_WINDOW  # no one else waits
    wire.forward(first)
    wire.send(second, message[16_000:])
    assert wire.held().message == message
    wire.forward(second)
    assert wire.runtime.streams[second].data == message
    assert wire.budget._free == SHORT


def test_a_call_that_is_cancelled_while_it_waits_for_memory_takes_none() -> None:
    wire = Wire(budget=SHORT)
    first = wire.call(HELD, b"a" * 150_000)
    second = wire.request(HELD)
    wire.send(second, prefixed(b"b" * 120_000)[:16_000], end_stream=False)
    wire.reset(second)
    wire.forward(first)
    wire.answer(first)
    wire.assert_idle()


def test_a_release_on_another_connection_calls_changed() -> None:
    """Check the callback: the client waits for credit, and nothing comes in that would make the link write."""
    written: list[bytes] = []
    one, other = Wire(budget=SHORT), Wire(started=False)
    other.relay = Relay(
        held_paths=frozenset({HELD}),
        budget=one.budget,
        clock=lambda: 0.0,
        changed=lambda: written.append(other.relay.to_client()),
    )
    other.flow()
    first = one.call(HELD, b"a" * 150_000)
    second = other.request(HELD)
    message = prefixed(b"b" * 120_000)
    other.send(second, message[:16_000], end_stream=False)
    assert written == []
    one.forward(first)
    assert written == [frames.window_update(second, 16_000)]
    other.client.receive(written[0])
    other.send(second, message[16_000:])
    assert other.held().message == message


def test_room_is_given_back_only_once_the_runtime_has_taken_the_message() -> None:
    wire = Wire(budget=SHORT)
    stream = wire.call(HELD, b"a" * 150_000)
    wire.runtime.auto_credit = False
    wire.forward(stream)
    assert 0 < len(wire.runtime.streams[stream].data) < 150_000
    assert not wire.budget.reserve(SHORT, lambda: None)
    wire.credit_all()
    assert len(wire.runtime.streams[stream].data) == len(prefixed(b"a" * 150_000))
    assert wire.budget._free == 0  # the call that waited has the room


def test_what_a_large_first_window_lets_in_is_refused_beyond_its_room() -> None:
    """Check a window that lets in a whole message of every call; the runtime chooses its size."""
    wire = Wire(budget=800_000)
    assert wire.budget.reserve(800_000, lambda: None)
    wire.runtime.connection.increment_flow_control_window(10_000_000)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 500_000})
    early, refused, small = (wire.request(HELD) for _ in range(3))
    message = prefixed(b"x" * 300_000)
    wire.send(early, message[:190_000], end_stream=False)
    wire.send(refused, message[: frames.DEFAULT_WINDOW + 1], end_stream=False)
    wire.send(small, message[:60_000], end_stream=False)
    statuses = [
        wire.client.streams[s].last(b"grpc-status") if s in wire.client.streams else None for s in (early, refused, small)
    ]
    assert statuses == [None, b"8", None]
    wire.reset(early)
    wire.reset(small)
    assert wire.budget._early == 200_000
