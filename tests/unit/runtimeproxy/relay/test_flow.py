"""Test windows, credit and queued DATA between two strict HTTP/2 peers; h2 raises on DATA beyond a window."""

import pytest
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.events import Side
from runtimeproxy.relay.flow import MAX_BURST, MAX_LATER
from tests.fakes.wire import FREE, HELD, TRAILER, Wire

WIDE = frames.DEFAULT_WINDOW + (8 << 20)


def short_of_window() -> tuple[Wire, int]:
    """Return a wire and a call: the runtime has taken 60,000 bytes of the held call, and gives no credit."""
    wire = Wire()
    wire.runtime.auto_credit = False
    held = wire.call(HELD, b"x" * 60_000)
    wire.forward(held)  # the client's window is wide open again
    return wire, held


def wide_open() -> Wire:
    """Return a wire whose runtime has windows of megabytes."""
    wire = Wire()
    wire.runtime.connection.increment_flow_control_window(8 << 20)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 8 << 20})
    return wire


# Bytes of the relay's own, and DATA that wait


def test_data_that_passes_queues_behind_the_relays_own_bytes() -> None:
    wire, held = short_of_window()
    passing, message = wire.request(), prefixed(b"p" * 40_000)
    wire.client.connection.send_data(passing, message[:8_000], pad_length=200)  # the relay credits the padding
    wire.send(passing, message[8_000:])
    assert len(wire.runtime.streams[passing].data) < 6000
    wire.credit_all()
    assert wire.runtime.streams[passing].data == message
    assert wire.runtime.streams[passing].ended
    assert passing not in wire.relay._streams  # the stream's frames merely pass again
    for stream in (held, passing):
        wire.answer(stream)
    wire.assert_idle()


@pytest.mark.parametrize(
    ("path", "whole", "by"),
    [(FREE, False, Side.CLIENT), (FREE, False, Side.RUNTIME), (FREE, True, Side.RUNTIME), (HELD, True, Side.RUNTIME)],
)
def test_a_call_that_ends_with_queued_data_is_reset_at_the_runtime(path: bytes, whole: bool, by: Side) -> None:
    """Check that a request with a gap never ends as if it were whole, and that its queued bytes are credited."""
    wire, held = short_of_window()
    stream = wire.request(path)
    wire.send(stream, prefixed(b"y" * 30_000), end_stream=whole)
    wire.forward(stream)
    wire.reset(stream) if by is Side.CLIENT else wire.answer(stream, b"")
    wire.credit_all()
    if by is Side.RUNTIME and not whole:
        wire.send(stream, b"")
    seen = wire.runtime.streams[stream]
    assert (seen.ended, seen.reset) == (False, ErrorCode.CANCEL)
    wire.answer(held)
    wire.assert_idle()


@pytest.mark.parametrize("queued", ["while held", "between bursts"])
def test_trailers_of_a_client_do_not_overtake_its_data(queued: str) -> None:
    wire, message = wide_open(), bytes(1_000_000)
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    if queued == "while held":
        wire.send_trailers(stream)
        assert not wire.runtime.streams[stream].ended
    assert wire.relay.forward(stream, message)
    if queued == "between bursts":
        wire.send_trailers(stream)
    wire.flow()
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.last(TRAILER[0])) == (prefixed(message), True, TRAILER[1])
    wire.answer(stream)
    other = wire.call(message=b"after")  # the request direction is re-encoded from here on
    assert wire.runtime.streams[other].data == prefixed(b"after")
    wire.answer(other)
    wire.assert_idle(window=WIDE)


def test_a_large_message_is_sent_in_bursts_between_which_other_connections_have_their_turn() -> None:
    wire = wide_open()
    stream, message = wire.call(HELD, b"create"), bytes(1_000_000)
    assert wire.relay.forward(stream, message)
    sizes: list[int] = []
    while wire.relay.more_to_runtime or not sizes:
        part = wire.relay.to_runtime()
        sizes.append(len(part))
        wire.runtime.receive(part)
    assert len(sizes) == 4
    assert max(sizes) < MAX_BURST + 2 * frames.DEFAULT_MAX_FRAME_SIZE
    assert wire.relay.to_runtime() == b""
    assert wire.runtime.streams[stream].data == prefixed(message)
    assert wire.runtime.streams[stream].ended


# The runtime's INITIAL_WINDOW_SIZE


@pytest.mark.parametrize(("size", "initial"), [(50_000, 0), (50_000, 1), (50_000, 100), (50_000, 1 << 20), (100_000, 65_535)])
def test_the_runtimes_initial_window_changes_in_mid_call(size: int, initial: int) -> None:
    """Check a held message: the client sends all of it whatever the runtime's window, which counts from the decision on."""
    wire, message = Wire(), b"x" * size
    wire.runtime.auto_credit = False
    stream = wire.call(HELD, message)
    assert wire.held().message == prefixed(message)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: initial})
    wire.forward(stream)
    assert len(wire.runtime.streams[stream].data) == min(initial, size + 5)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 70_000, SettingCodes.MAX_FRAME_SIZE: 30_000})
    wire.credit_all()
    assert wire.runtime.streams[stream].data == prefixed(message)
    wire.answer(stream)
    wire.assert_idle()


@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_a_window_smaller_than_the_prefix(window: int) -> None:
    wire = Wire()
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: window})
    stream = wire.call(HELD, b"create")
    assert wire.held().message == prefixed(b"create")
    wire.forward(stream)
    assert wire.runtime.streams[stream].data == prefixed(b"create")
    wire.answer(stream)
    wire.assert_idle()


@pytest.mark.parametrize("forwarded", [False, True])
def test_an_empty_end_of_a_call_needs_no_window(forwarded: bool) -> None:
    """Check a runtime that shrank its window after the client had sent as much as the old window allowed (RFC 9113 6.9.2).

    The window is below zero; the client may still send an empty DATA frame (6.9)."""
    wire, message = Wire(), prefixed(b"create")
    wire.runtime.auto_credit = False
    stream = wire.request(HELD)
    wire.send(stream, message, end_stream=False)
    if forwarded:
        wire.forward(stream)
    wire.send(stream, b"more" * 1000, end_stream=False)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    assert wire.client.connection.local_flow_control_window(stream) < 0
    wire.client.connection.end_stream(stream)
    wire.flow()
    assert wire.runtime.streams[stream].ended is forwarded
    assert wire.forward(stream) is not forwarded
    wire.credit_all()
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended) == (message + b"more" * 1000, True)
    wire.answer(stream)
    wire.assert_idle()


def test_the_window_of_a_held_stream_grows_with_the_runtimes_settings_and_credit() -> None:
    wire = Wire(budget=1_000_000)
    assert wire.budget.reserve(1_000_000, lambda: None)  # nothing is left: the relay itself gives no credit
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
    stream = wire.request(HELD)
    wire.flow()
    wire.runtime.connection.increment_flow_control_window(5_000, stream)
    wire.runtime.connection.increment_flow_control_window(200_000)
    wire.announce(wire.runtime, {SettingCodes.INITIAL_WINDOW_SIZE: 110_000})
    wire.send(stream, prefixed(b"x" * 200_000)[:115_000], end_stream=False)
    assert wire.relay.broken is None
    assert wire.client.connection.local_flow_control_window(stream) == 0


# The client's credit


@pytest.mark.parametrize("whole", [True, False])
def test_data_beyond_the_window_of_a_held_stream_end_the_connection(whole: bool) -> None:
    """Check the stream's window: the connection's credit is given back at once, so this alone bounds a held call's memory."""
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


@pytest.mark.parametrize("greeted", [True, False])
def test_credit_counts_once_it_is_sent(greeted: bool) -> None:
    """Check credit before the runtime's SETTINGS: it waits for them, and would pile up if the client used it already."""
    wire = Wire(started=greeted)
    stream = wire.request(HELD)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    wire.relay.receive_from_client(frames.frame(frames.DATA, 0, stream, prefixed(b"")))
    wire.relay.refuse(stream, 9, "no")
    piece = frames.frame(frames.DATA, 0, stream, b"x" * 16_000)
    wire.relay.receive_from_client(4 * piece)
    assert wire.relay.broken is None
    wire.relay.receive_from_client(piece)
    broken = wire.relay.broken
    assert (broken and (broken.by, broken.code)) == (None if greeted else (Side.CLIENT, ErrorCode.FLOW_CONTROL_ERROR))


def test_credit_that_waited_for_the_runtimes_settings_counts_with_them() -> None:
    wire = Wire(started=False)
    stream = wire.request(HELD)
    wire.client.connection.send_data(stream, prefixed(b"x" * 10_000), end_stream=True)
    wire.relay.receive_from_client(wire.client.connection.data_to_send())
    wire.flow()
    wire.forward(stream)
    wire.answer(stream)
    wire.assert_idle()


def test_bytes_after_a_whole_message_get_the_connections_credit_only() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    message = prefixed(b"create")
    wire.send(stream, message, end_stream=False)
    wire.send(stream, b"more" * 1000, end_stream=False)
    assert wire.connection_windows()[0] == frames.DEFAULT_WINDOW
    assert wire.client.connection.local_flow_control_window(stream) == frames.DEFAULT_WINDOW - 4000
    wire.runtime.connection.increment_flow_control_window(1000, stream)
    wire.flow()
    assert wire.runtime.streams[stream].data == b""  # credit does not end the hold
    wire.forward(stream)
    assert wire.runtime.streams[stream].data == message + b"more" * 1000


def test_a_client_gets_the_credit_of_a_whole_message_at_the_end_of_a_call() -> None:
    """Check that no frame is sent for the credit alone: it comes with the answer, or when the client cancels."""
    wire = Wire()
    answered, cancelled = wire.call(HELD, b"create"), wire.call(HELD, b"create")
    size = len(prefixed(b"create"))
    assert wire.connection_windows()[0] == frames.DEFAULT_WINDOW - 2 * size
    wire.reset(cancelled)
    assert wire.connection_windows()[0] == frames.DEFAULT_WINDOW
    wire.forward(answered)
    wire.answer(answered)
    wire.assert_idle()


def test_credit_that_waits_leaves_the_client_most_of_its_window() -> None:
    wire = Wire()
    for _ in range(20):
        wire.call(HELD, b"x" * 4000)
        assert wire.connection_windows()[0] >= frames.DEFAULT_WINDOW - MAX_LATER
