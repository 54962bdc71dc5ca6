"""The relay between two strict HTTP/2 peers."""

import pytest
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import GrpcStatus, prefixed
from runtimeproxy.relay.events import CallCancelled, CallEnded, CallHeld, Side
from runtimeproxy.relay.flow import MAX_BURST
from tests.fakes.wire import HELD, Peer, Wire

IDLE = (frames.DEFAULT_WINDOW, frames.DEFAULT_WINDOW)


def assert_idle(wire: Wire) -> None:
    assert wire.relay.broken is None
    assert wire.relay.open_calls == 0
    assert wire.connection_windows() == IDLE
    assert wire.relay._streams == {}
    assert wire.relay._flow._queued == {}
    assert wire.budget._room == 64 << 20


def test_a_call_that_no_one_wants_passes() -> None:
    wire = Wire()
    stream = wire.call(message=b"hello")
    assert wire.runtime.streams[stream].data == prefixed(b"hello")
    assert wire.runtime.streams[stream].ended
    wire.answer(stream, b"world")
    assert wire.client.streams[stream].data == prefixed(b"world")
    assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    assert wire.events == []
    assert_idle(wire)


def test_a_held_call_waits_with_its_headers_forwarded() -> None:
    wire = Wire()
    stream = wire.call(HELD, b"create", headers=[(b"grpc-timeout", b"2S"), (b"traceparent", b"00-aa-bb-01")])
    assert wire.runtime.streams[stream].last(b":path") == HELD
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
    assert_idle(wire)


def test_end_of_stream_may_come_before_or_after_the_decision() -> None:
    for late in (False, True):
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
        assert_idle(wire)


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
    assert_idle(wire)


def test_refuse_before_the_client_ended_its_half() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    in_flight = frames.frame(frames.DATA, frames.END_STREAM, stream, b"late")
    wire.relay.refuse(stream, 9, "no")
    wire.relay.receive_from_client(in_flight)  # sent before the client heard of it
    wire.flow()
    assert wire.client.streams[stream].last(b"grpc-status") == b"9"
    assert wire.runtime.streams[stream].data == b""
    assert wire.relay._streams == {}


def test_a_late_answer_on_a_refused_call_is_dropped_and_tables_stay_in_step() -> None:
    wire = Wire()
    first = wire.call(HELD)
    # The runtime answers while the refusal is on its way to it: with new table entries, so that a drop would desynchronise.
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-new", b"entry")]
    wire.runtime.connection.send_headers(first, fields)
    wire.runtime.connection.send_data(first, b"d" * 10_000)
    late = wire.runtime.connection.data_to_send()
    wire.relay.refuse(first, 9, "no")
    wire.relay.receive_from_runtime(late)
    wire.flow()
    assert wire.client.streams[first].last(b"x-new") is None
    for _ in range(3):
        stream = wire.request()
        wire.send(stream, prefixed(b"q"))
        wire.runtime.connection.send_headers(stream, fields)
        wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        wire.flow()
        assert wire.client.streams[stream].last(b"x-new") == b"entry"
    assert_idle(wire)


def test_the_runtime_may_answer_a_held_call_first() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.answer(stream, b"", status=b"4")
    assert wire.client.streams[stream].last(b"grpc-status") == b"4"
    assert wire.events[-1] == CallCancelled(stream, Side.RUNTIME)
    assert not wire.forward(stream)
    assert not wire.refuse(stream)
    assert wire.runtime.streams[stream].data == b""
    assert_idle(wire)


@pytest.mark.parametrize("whole", [True, False])
def test_the_client_may_give_up_while_held(whole: bool) -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create") if whole else prefixed(b"create")[:-1], end_stream=False)
    wire.client.connection.reset_stream(stream, ErrorCode.CANCEL)
    wire.flow()
    assert wire.events[-1] == CallCancelled(stream, Side.CLIENT)
    assert wire.runtime.streams[stream].reset == ErrorCode.CANCEL
    assert not wire.forward(stream)
    assert_idle(wire)


def test_a_message_cut_short_is_the_runtimes_to_refuse() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create")[:-2])
    assert not any(isinstance(e, CallHeld) for e in wire.events)
    assert wire.runtime.streams[stream].data == prefixed(b"create")[:-2]
    assert wire.runtime.streams[stream].ended
    wire.answer(stream, status=b"13")
    assert_idle(wire)


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
    assert_idle(wire)


@pytest.mark.parametrize("size", [100_000, 15 << 20])
def test_a_large_held_message_does_not_need_the_runtimes_window(size: int) -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    stream = wire.call(HELD, b"x" * size)
    assert wire.held().message == prefixed(b"x" * size)
    wire.forward(stream)
    assert len(wire.runtime.streams[stream].data) == frames.DEFAULT_WINDOW
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.flow()
    assert wire.runtime.streams[stream].data == prefixed(b"x" * size)
    wire.answer(stream)
    assert_idle(wire)


def test_data_that_passes_queues_behind_the_relays_own_bytes() -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    held = wire.call(HELD, b"x" * 60_000)
    wire.forward(held)  # the runtime's connection window is nearly shut now, the client's is wide open
    passing = wire.request()
    wire.send(passing, prefixed(b"p" * 40_000))
    assert len(wire.runtime.streams[passing].data) < 6000
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.flow()
    assert wire.runtime.streams[passing].data == prefixed(b"p" * 40_000)
    assert wire.runtime.streams[passing].ended
    for stream in (held, passing):
        wire.answer(stream)
    assert_idle(wire)


def test_queued_data_of_a_call_that_ends_is_credited() -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    held = wire.call(HELD, b"x" * 65_000)
    wire.forward(held)
    passing = wire.request()
    wire.send(passing, prefixed(b"p" * 40_000), end_stream=False)
    wire.client.connection.reset_stream(passing)
    wire.flow()
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.flow()
    wire.answer(held)
    assert_idle(wire)


def test_trailers_of_a_client_do_not_overtake_its_data() -> None:
    wire = Wire()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    wire.client.connection.send_headers(stream, [(b"x-checksum", b"1")], end_stream=True)
    wire.flow()
    assert not wire.runtime.streams[stream].ended
    wire.forward(stream, b"changed")
    seen = wire.runtime.streams[stream]
    assert (seen.data, seen.ended, seen.last(b"x-checksum")) == (prefixed(b"changed"), True, b"1")
    wire.answer(stream)
    other = wire.call(message=b"after")  # the request direction is re-encoded from here on
    assert wire.runtime.streams[other].data == prefixed(b"after")
    wire.answer(other)
    assert_idle(wire)


@pytest.mark.parametrize("initial", [0, 1, 100, 1 << 20])
def test_the_runtimes_initial_window_changes_in_mid_call(initial: int) -> None:
    wire = Wire()
    wire.runtime.auto_credit = False
    stream = wire.call(HELD, b"x" * 50_000)
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: initial})
    wire.flow()
    wire.forward(stream)
    assert len(wire.runtime.streams[stream].data) == min(initial, 50_005)
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70_000, SettingCodes.MAX_FRAME_SIZE: 30_000})
    wire.flow()
    wire.runtime.auto_credit = True
    wire.runtime.credit()
    wire.flow()
    assert wire.runtime.streams[stream].data == prefixed(b"x" * 50_000)
    wire.answer(stream)
    assert_idle(wire)


@pytest.mark.parametrize("size", [0, 64, 4096, 65_536])
def test_header_table_size_changes_both_ways(size: int) -> None:
    wire = Wire()
    for peer in (wire.client, wire.runtime):
        stream = wire.call(HELD)
        wire.forward(stream)
        wire.answer(stream)
        peer.connection.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
        wire.flow()
        stream = wire.call(HELD)
        wire.refuse(stream)  # a block of the relay's own comes first after the change
        assert wire.client.streams[stream].last(b"grpc-status") == b"9"
        for number in range(3):
            stream = wire.call(headers=[(b"x-number", b"%d" % number)])
            wire.answer(stream)
            assert wire.client.streams[stream].last(b"grpc-status") == b"0"
    assert_idle(wire)


def test_a_header_block_in_pieces_with_padding_and_priority() -> None:
    wire = Wire()
    big = [(b"x-big", b"v" * 40_000)]
    stream = wire.call(HELD, headers=big)
    assert wire.runtime.streams[stream].last(b"x-big") == b"v" * 40_000
    wire.forward(stream)
    wire.runtime.connection.send_headers(stream, [(b":status", b"200"), *big])
    wire.runtime.connection.send_headers(stream, [(b"grpc-status", b"0"), *big], end_stream=True)
    wire.flow()
    assert wire.client.streams[stream].last(b"x-big") == b"v" * 40_000
    padded = wire.request(HELD)
    wire.client.connection.prioritize(padded, weight=7)
    wire.client.connection.send_data(padded, prefixed(b"padded"), end_stream=True, pad_length=200)
    wire.flow()
    assert wire.held().message == prefixed(b"padded")
    wire.forward(padded)
    assert wire.runtime.streams[padded].data == prefixed(b"padded")
    wire.answer(padded)
    assert_idle(wire)


def test_goaway_of_the_runtime_cancels_what_it_will_not_answer() -> None:
    wire = Wire()
    stream = wire.call(HELD)
    wire.runtime.connection.close_connection(last_stream_id=0)
    wire.flow()
    assert wire.events[-1] == CallCancelled(stream, Side.RUNTIME)
    assert not wire.forward(stream)


def test_pings_and_their_answers_pass() -> None:
    wire = Wire()
    wire.client.connection.ping(b"12345678")
    wire.flow()
    assert type(wire.client.events[-1]).__name__ == "PingAckReceived"


def test_refused_calls_leave_nothing_behind() -> None:
    wire = Wire()
    for _ in range(50):
        wire.refuse(wire.call(HELD))
    assert_idle(wire)
    assert not wire.relay._refused.calls


def test_announced_end_waits_for_open_calls_and_for_the_client_to_know() -> None:
    wire = Wire()
    stream = wire.call()
    wire.relay.announce_end()
    said = wire.relay.to_client()
    goaway, ping = said[: 9 + 8], said[9 + 8 :]
    assert (goaway[3], goaway[9:13]) == (frames.GOAWAY, b"\x7f\xff\xff\xff")
    wire.answer(stream)
    assert not wire.relay.ended  # a call may be on its way
    wire.relay.receive_from_client(frames.frame(frames.PING, frames.ACK, 0, ping[9:]))
    assert wire.relay.ended
    assert wire.relay.to_runtime() == b""


def test_end_answers_every_open_call() -> None:
    wire = Wire()
    silent, begun, held = wire.call(), wire.call(), wire.call(HELD)
    wire.runtime.connection.send_headers(begun, [(b":status", b"200")])
    wire.flow()
    wire.relay.end("the runtime at /run/x.sock is gone")
    wire.flow()
    for stream in (silent, begun, held):
        assert wire.client.streams[stream].last(b"grpc-status") == b"14"
        assert wire.client.streams[stream].ended
    assert CallCancelled(held, Side.RUNTIME) in wire.events


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frames.frame(frames.HEADERS, 4, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.CONTINUATION, 4, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 0, 1, b"\x82") + frames.frame(frames.PING, 0, 0, b"8" * 8), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 8 | 4, 1, b"\x09\x82"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.PING, 0, 0, b"7"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.DATA, 0, 1, b"x" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.DATA, 0, 1, b"x" * 16_000) * 5, ErrorCode.FLOW_CONTROL_ERROR),
        (frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"), ErrorCode.PROTOCOL_ERROR),
        (b"GET / HTTP/1.1\r\n\r\n", None),
    ],
)
def test_malformed_input_ends_the_connection_with_its_code(data: bytes, code: ErrorCode | None) -> None:
    wire = Wire(client=Peer(client=True))
    if code is None:
        wire.relay._preface = frames.PREFACE
    wire.relay.receive_from_client(data)
    assert wire.relay.broken
    assert wire.relay.broken.by is Side.CLIENT
    assert wire.relay.broken.code == (code or ErrorCode.PROTOCOL_ERROR)
    assert wire.relay.to_client()[3] == frames.GOAWAY


def test_a_malformed_runtime_is_not_the_clients_fault() -> None:
    wire = Wire()
    wire.call()
    wire.relay.receive_from_runtime(frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"))
    assert wire.relay.broken
    assert wire.relay.broken.by is Side.RUNTIME
    text = wire.relay.broken.message
    assert wire.relay.to_client() == frames.goaway(1, ErrorCode.INTERNAL_ERROR, text)


def wide_open() -> Wire:
    """A runtime with room for megabytes."""
    wire = Wire()
    wire.runtime.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 8 << 20})
    wire.runtime.connection.increment_flow_control_window(8 << 20)
    wire.flow()
    return wire


def test_a_large_message_goes_on_in_parts_between_which_others_have_their_turn() -> None:
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


def test_a_message_that_waits_for_its_next_part_is_not_overtaken_by_trailers_of_its_own() -> None:
    wire = wide_open()
    stream = wire.request(HELD)
    wire.send(stream, prefixed(b"create"), end_stream=False)
    assert wire.relay.forward(stream, bytes(1_000_000))
    wire.client.connection.send_headers(stream, [(b"late", b"1")], end_stream=True)
    wire.flow()
    assert len(wire.runtime.streams[stream].data) == 1_000_005
    assert wire.runtime.streams[stream].last(b"late") == b"1"
    assert wire.runtime.streams[stream].ended
