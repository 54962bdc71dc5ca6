"""Check the relay between two strict peers that do anything legal in any order, with crossing frames split anywhere.

h2 on both sides raises an error for bytes that the RFC forbids, so each step that moves bytes is a check. Also: every held call
ends in exactly one way; each side receives the other side's bytes, or the decided ones; at the end all windows are exact, no
stream is open, and the relay keeps no state. `LADING_DEPTH` (tests/depth.py) makes the test longer.
"""

from dataclasses import dataclass, field

import h2.events
import pytest
from h2.settings import SettingCodes
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import GrpcStatus, prefixed
from runtimeproxy.relay.events import CallCancelled, CallEnded, CallHeld
from tests.depth import repeats
from tests.fakes.crossing import Crossing, Pipe
from tests.fakes.wire import FREE, HELD, Peer, Seen, request_fields, unsent_credit

MAX_MESSAGE = 90_000
BUDGET = 100_000  # two that are larger than a window do not fit
Block = list[tuple[bytes, bytes]]
Extra = list[tuple[bytes, str]]

edges = st.sampled_from([0, 16_379, 16_384, 40_000, 65_530, 65_535, 65_536, 89_000])
sizes = st.one_of(st.integers(0, 20), st.integers(0, 20_000), edges)
a_call = st.tuples(
    st.sampled_from([True, True, False]), st.one_of(sizes, st.just(300_000)), st.sampled_from([None, None, 9]), st.booleans()
)  # held, size, padding, with its end
any_number = st.integers(0, 1000)
VALUES = {"none": b"", "short": b"1", "some": b"v" * 50, "long": b"w" * 900, "huge": b"z" * 20_000}
extras = st.lists(st.tuples(st.sampled_from([b"x-a", b"x-b"]), st.sampled_from(sorted(VALUES))), max_size=2)
setting = st.one_of(
    st.tuples(st.just(SettingCodes.INITIAL_WINDOW_SIZE), st.sampled_from([0, 1, 4, 5, 1000, 65_535, 200_000])),
    st.tuples(st.just(SettingCodes.HEADER_TABLE_SIZE), st.sampled_from([0, 64, 1000, 4096, 65_536])),
    st.tuples(st.just(SettingCodes.MAX_FRAME_SIZE), st.sampled_from([16_384, 20_000, 100_000])),
)


@dataclass
class Call:
    stream: int
    held: bool
    body: bytes
    blocks: list[Block]
    sent: int = 0
    client_ended: bool = False  # END_STREAM sent
    client_reset: bool = False
    answer_blocks: list[Block] = field(default_factory=list)
    answer: bytearray = field(default_factory=bytearray)
    runtime_ended: bool = False
    runtime_reset: bool = False
    was_held: bool = False  # CallHeld was seen
    forwarded: bytes | None = None
    observed: bool = False
    refused: int | None = None
    cancelled: bool = False
    ended: bool = False  # CallEnded was seen

    @property
    def decided(self) -> bool:
        return self.forwarded is not None or self.refused is not None or self.cancelled


class RelayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wire = Crossing(budget=BUDGET, max_message=MAX_MESSAGE)
        self.calls: dict[int, Call] = {}
        self.unprocessed = frames.LARGEST_WINDOW  # streams beyond it were given up by the runtime's GOAWAY
        self.announced = False
        self.settings_sent = {True: 1, False: 1}  # settings sent: True is the client, False the runtime
        self.windows = {True: frames.DEFAULT_WINDOW, False: frames.DEFAULT_WINDOW}  # windows of the connection, by giver
        self.events_seen = 0

    @initialize(calls=st.lists(a_call, min_size=1, max_size=6), client=st.booleans(), runtime=st.booleans())
    def begin(self, calls: list[tuple[bool, int, int | None, bool]], client: bool, runtime: bool) -> None:
        """Begin with some held calls."""
        self.wire.client.auto_credit, self.wire.runtime.auto_credit = client, runtime
        for one in calls:
            self.call(*one)

    # ---- the client

    @precondition(lambda self: len(self.calls) < 12 and self.unprocessed == frames.LARGEST_WINDOW)
    @rule(held=st.booleans(), size=sizes, extra=extras, no_message=st.sampled_from([False] * 9 + [True]))
    def open(self, held: bool, size: int, extra: Extra, no_message: bool) -> None:
        stream = self.wire.request(HELD if held else FREE, headers=block_of(extra), end_stream=no_message)
        body = b"" if no_message else prefixed(bytes([stream % 251]) * size)
        sent = request_fields(HELD if held else FREE, block_of(extra))
        self.calls[stream] = Call(stream, held and not no_message, body, [sent], client_ended=no_message)

    @precondition(lambda self: len(self.calls) < 12 and self.unprocessed == frames.LARGEST_WINDOW)
    @rule(one=a_call)
    def calls_on(self, one: tuple[bool, int, int | None, bool]) -> None:
        self.call(*one)

    def call(self, held: bool, size: int, pad: int | None, with_end: bool) -> None:
        """Send as much of a message as the windows allow."""
        self.open(held, size, [], no_message=False)
        self.wire.flow()
        call = self.calls[max(self.calls)]
        for _ in range(8):
            if call in self.senders():
                self.send_some(call, size + 5, pad, with_end=with_end)
                self.wire.flow()

    @precondition(lambda self: self.senders())
    @rule(which=any_number, size=sizes, pad=st.sampled_from([None, None, 0, 1, 255]), with_end=st.booleans())
    def send(self, which: int, size: int, pad: int | None, with_end: bool) -> None:
        self.send_some(pick(self.senders(), which), size, pad, with_end=with_end)

    def send_some(self, call: Call, size: int, pad: int | None, *, with_end: bool) -> None:
        padding = 0 if pad is None else pad + 1
        room = sendable(self.wire.client, call.stream) - padding
        size = min(size, room, len(call.body) - call.sent)
        if size < 0:
            return
        whole = call.sent + size == len(call.body)
        piece = call.body[call.sent : call.sent + size]
        self.wire.client.connection.send_data(call.stream, piece, end_stream=whole and with_end, pad_length=pad)
        call.sent += size
        call.client_ended = whole and with_end

    @precondition(lambda self: self.senders())
    @rule(which=any_number, trailers=st.sampled_from([False, False, True]))
    def end_request(self, which: int, trailers: bool) -> None:
        """End a request, even if its message is incomplete."""
        call = pick(self.senders(), which)
        client = self.wire.client.connection
        if trailers:
            call.blocks.append([(b"x-checksum", b"%d" % call.stream)])
            client.send_headers(call.stream, call.blocks[-1], end_stream=True)
        else:
            client.end_stream(call.stream)
        call.client_ended = True

    @precondition(lambda self: self.client_open())
    @rule(which=any_number)
    def client_resets(self, which: int) -> None:
        call = pick(self.client_open(), which)
        self.wire.client.connection.reset_stream(call.stream, ErrorCode.CANCEL)
        call.client_reset = True

    # ---- the runtime

    @precondition(lambda self: self.answerable())
    @rule(which=any_number, extra=extras, size=sizes, pad=st.sampled_from([None, 0, 200]))
    def runtime_answers(self, which: int, extra: Extra, size: int, pad: int | None) -> None:
        call = pick(self.answerable(), which)
        runtime = self.wire.runtime.connection
        if not call.answer_blocks:
            call.answer_blocks.append([(b":status", b"200"), (b"content-type", b"application/grpc"), *block_of(extra)])
            runtime.send_headers(call.stream, call.answer_blocks[-1])
            return
        padding = 0 if pad is None else pad + 1
        size = min(size, sendable(self.wire.runtime, call.stream) - padding)
        if size >= 0:
            runtime.send_data(call.stream, bytes([call.stream % 253]) * size, pad_length=pad)
            call.answer += bytes([call.stream % 253]) * size

    @precondition(lambda self: self.answerable())
    @rule(which=any_number, extra=extras, bare=st.sampled_from([False] * 5 + [True]), reset=st.booleans())
    def runtime_ends(self, which: int, extra: Extra, bare: bool, reset: bool) -> None:
        self.end_answer(pick(self.answerable(), which), extra, bare=bare, reset=reset)

    def end_answer(self, call: Call, extra: Extra, *, bare: bool = False, reset: bool = False) -> None:
        runtime = self.wire.runtime.connection
        if bare and call.answer_blocks and runtime.local_flow_control_window(call.stream) >= 0:
            runtime.end_stream(call.stream)  # no trailers
        else:
            first = [] if call.answer_blocks else [(b":status", b"200")]
            call.answer_blocks.append([*first, (b"grpc-status", b"%d" % (call.stream % 17)), *block_of(extra)])
            runtime.send_headers(call.stream, call.answer_blocks[-1], end_stream=True)
        call.runtime_ended = True
        if reset and not self.seen_by_runtime(call).ended:  # 8.1: no one needs the rest of the request
            runtime.reset_stream(call.stream, ErrorCode.NO_ERROR)
            call.runtime_reset = True

    @precondition(lambda self: self.answerable())
    @rule(which=any_number)
    def runtime_resets(self, which: int) -> None:
        call = pick(self.answerable(), which)
        self.wire.runtime.connection.reset_stream(call.stream, ErrorCode.INTERNAL_ERROR)
        call.runtime_reset = True

    @precondition(lambda self: len(self.calls) > 6 and self.unprocessed == frames.LARGEST_WINDOW)
    @rule(which=any_number)
    def runtime_goes_away(self, which: int) -> None:
        last = pick(list(self.calls.values()), which).stream
        self.wire.flow()  # (raw bytes of this test must not land inside a frame of h2's that is on its way)
        self.wire.relay.receive_from_runtime(frames.goaway(last, ErrorCode.NO_ERROR))
        self.unprocessed = last
        self.wire.flow()
        for call in self.client_open():
            if call.stream > last:  # the client takes it to another connection
                self.wire.client.connection.reset_stream(call.stream, ErrorCode.CANCEL)
                call.client_reset = True

    # ---- both

    @rule(client=st.booleans(), change=setting)
    def settings_change(self, client: bool, change: tuple[SettingCodes, int]) -> None:
        """Change one setting. Only one change is pending at a time, because h2 takes one acknowledgement for all SETTINGS."""
        peer = self.wire.client if client else self.wire.runtime
        if not self.settings_pending(client=client):
            self.settings_sent[client] += 1
            peer.connection.update_settings(dict([change]))
            if change[0] is SettingCodes.MAX_FRAME_SIZE:  # h2 looks at it between two reads only, not between two frames
                peer.connection.max_inbound_frame_size = max(peer.connection.max_inbound_frame_size, change[1])

    @rule(client=st.booleans(), auto=st.booleans())
    def credit(self, client: bool, auto: bool) -> None:
        peer = self.wire.client if client else self.wire.runtime
        peer.auto_credit = auto
        peer.credit()

    @rule(client=st.booleans(), size=st.integers(1, 200_000))
    def widen(self, client: bool, size: int) -> None:
        """Increase the connection's window, so that a stream's window may be smaller."""
        (self.wire.client if client else self.wire.runtime).connection.increment_flow_control_window(size)
        self.windows[client] += size

    @rule(client=st.booleans())
    def ping(self, client: bool) -> None:
        (self.wire.client if client else self.wire.runtime).connection.ping(b"12345678")

    @precondition(lambda self: len(self.calls) > 3 and not self.announced)
    @rule()
    def announce_end(self) -> None:
        self.wire.relay.announce_end()
        self.announced = True

    # ---- the relay

    @precondition(lambda self: self.undecided())
    @rule(which=any_number, size=st.one_of(st.none(), sizes, st.just(150_000)), observe=st.booleans())
    def forward(self, which: int, size: int | None, observe: bool) -> None:
        call = pick(self.undecided(), which)
        message = None if size is None else b"\xee" * size
        assert self.wire.relay.forward(call.stream, message, observe=observe)
        call.forwarded = call.body if message is None else prefixed(message)
        call.observed = observe

    @precondition(lambda self: self.undecided())
    @rule(which=any_number)
    def refuse(self, which: int) -> None:
        call = pick(self.undecided(), which)
        assert self.wire.relay.refuse(call.stream, GrpcStatus.FAILED_PRECONDITION, "no")
        call.refused = GrpcStatus.FAILED_PRECONDITION

    @rule(pipe=st.sampled_from(Pipe), size=st.one_of(st.integers(1, 30), st.integers(1, 40_000)))
    def move(self, pipe: Pipe, size: int) -> None:
        self.wire.move(pipe, size)

    @rule(pipes=st.lists(st.sampled_from(Pipe), min_size=1, max_size=6))
    def move_all(self, pipes: list[Pipe]) -> None:
        for pipe in pipes:
            self.wire.move(pipe, 1 << 30)

    @rule()
    def flow(self) -> None:
        self.wire.flow()

    # ---- what must hold

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self.wire.relay.broken is None, self.wire.relay.broken

    @invariant()
    def calls_end_once(self) -> None:
        fresh, self.events_seen = self.wire.events[self.events_seen :], len(self.wire.events)
        for event in fresh:
            call = self.calls[event.stream]
            match event:
                case CallHeld(message=message):
                    assert call.held
                    assert not call.was_held
                    assert not call.decided
                    assert message == call.body[: len(message)] == call.body
                    call.was_held = True
                case CallCancelled():
                    assert not call.cancelled
                    assert call.refused is None
                    assert call.forwarded is None or call.observed
                    assert not call.ended
                    call.cancelled = True
                case CallEnded(status=status, reply=reply):
                    assert call.observed
                    assert not call.ended
                    assert not call.cancelled
                    assert status == call.stream % 17
                    assert bytes(call.answer).startswith(reply)
                    call.ended = True
        for call in self.calls.values():
            if call.decided and call.was_held:
                assert not self.wire.relay.forward(call.stream)
                assert not self.wire.relay.refuse(call.stream, 9, "twice")

    @invariant()
    def each_side_hears_what_was_said(self) -> None:
        for call in self.calls.values():
            self.check(call, over=False)

    def check(self, call: Call, *, over: bool) -> None:
        at_runtime, at_client = self.seen_by_runtime(call), self.seen_by_client(call)
        text = call.body[: call.sent]
        if call.forwarded is not None:
            text = call.forwarded
        elif call.held and (call.was_held or not call.client_ended):
            text = b""
        if call.cancelled and call.forwarded is None:
            assert call.body.startswith(at_runtime.data)  # nothing was taken before the runtime answered, so all went on
        else:
            assert text.startswith(at_runtime.data)
        assert call.blocks[: len(at_runtime.headers)] == at_runtime.headers
        assert call.client_ended or not at_runtime.ended
        blocks, refused = at_client.headers, self.refusal(call)
        if refused and blocks and (b"grpc-status", b"%d" % refused) in blocks[-1]:
            blocks = blocks[:-1]
            assert at_client.ended or call.client_reset
        assert call.answer_blocks[: len(blocks)] == blocks
        assert bytes(call.answer).startswith(at_client.data)
        if over and not (call.client_reset or call.runtime_reset or refused):
            assert at_client.ended
            assert (at_client.headers, at_client.data) == (call.answer_blocks, bytes(call.answer))
            if at_runtime.ended and not call.cancelled:
                assert (at_runtime.headers, at_runtime.data) == (call.blocks, text)
        if over and refused and not call.client_reset:
            assert at_client.last(b"grpc-status") == b"%d" % refused

    def teardown(self) -> None:
        """End all calls, and check that windows, streams and the relay's state are as at the start."""
        wire = self.wire
        wire.flow()
        for client, peer in ((True, wire.client), (False, wire.runtime)):
            peer.auto_credit = True
            peer.credit()
            assert not self.settings_pending(client=client)
            peer.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
        wire.flow()
        for _ in range(200):
            if not (self.senders() or self.undecided() or self.answerable()):
                break
            self.calls_end_once()
            for number, call in enumerate(self.undecided()):
                if number % 2:
                    self.refuse(0)
                else:
                    self.forward(0, None, observe=bool(call.stream & 2))
            wire.flow()
            for call in self.senders():
                self.send_on(call)
            wire.flow()
            for call in self.answerable():
                if self.seen_by_runtime(call).ended or not call.client_ended:
                    self.end_answer(call, [])
            wire.flow()
            self.calls_end_once()
            self.each_side_hears_what_was_said()
        self.nothing_is_broken()
        for call in self.calls.values():
            self.check(call, over=True)
            assert call.decided or not call.was_held
        self.nothing_is_left()

    def send_on(self, call: Call) -> None:
        client = self.wire.client.connection
        if call.runtime_ended and self.seen_by_client(call).ended:
            client.reset_stream(call.stream, ErrorCode.CANCEL)  # answered: the rest is of no use
            call.client_reset = True
            return
        while call.sent < len(call.body) and (size := sendable(self.wire.client, call.stream)) > 0:
            client.send_data(call.stream, call.body[call.sent : call.sent + size])
            call.sent = min(len(call.body), call.sent + size)
        if call.sent == len(call.body):
            client.end_stream(call.stream)
            call.client_ended = True

    def nothing_is_left(self) -> None:
        wire, relay = self.wire, self.wire.relay
        assert relay.broken is None
        assert relay.open_calls == 0
        assert wire.client.connection.open_outbound_streams == 0
        assert wire.runtime.connection.open_inbound_streams == 0
        assert relay._flow._queued == {}
        assert wire.budget._free == BUDGET
        assert not wire.budget._waiting
        # Refused before the client's end: it was reset and will say nothing more about it.
        silent = {s for s, call in self.calls.items() if self.refusal(call) and not call.client_ended}
        assert set(relay._streams) == relay._refused.calls <= silent
        for client, peer in ((True, wire.client), (False, wire.runtime)):
            assert peer.connection.inbound_flow_control_window + unsent_credit(peer) == self.windows[client]
        # The relay owes the client the window for data that h2 holds back, for streams that h2 reset.
        window, given = relay._flow._connection, wire.runtime.connection.inbound_flow_control_window
        assert window.owed <= self.windows[False] - given
        assert window.free == given
        assert relay._flow._client_credit == wire.client.connection.outbound_flow_control_window == given + window.owed
        assert wire.runtime.connection.outbound_flow_control_window == wire.client.connection.inbound_flow_control_window
        if wire.goaways:
            assert wire.goaways == sorted(wire.goaways, reverse=True)

    # ---- who may do what

    def seen_by_client(self, call: Call) -> Seen:
        return self.wire.client.streams.get(call.stream) or Seen()

    def seen_by_runtime(self, call: Call) -> Seen:
        return self.wire.runtime.streams.get(call.stream) or Seen()

    def client_open(self) -> list[Call]:
        calls = (c for c in self.calls.values() if not c.client_reset and self.seen_by_client(c).reset is None)
        return [c for c in calls if not (c.client_ended and self.seen_by_client(c).ended)]

    def senders(self) -> list[Call]:
        return [c for c in self.client_open() if not c.client_ended]

    def answerable(self) -> list[Call]:
        calls = (c for c in self.calls.values() if c.stream in self.wire.runtime.streams)
        alive = (c for c in calls if not c.runtime_reset and self.seen_by_runtime(c).reset is None)
        return [c for c in alive if not c.runtime_ended]

    def undecided(self) -> list[Call]:
        self.calls_end_once()
        return [c for c in self.calls.values() if c.was_held and not c.decided]

    def settings_pending(self, *, client: bool) -> bool:
        events = (self.wire.client if client else self.wire.runtime).events
        return self.settings_sent[client] > sum(isinstance(e, h2.events.SettingsAcknowledged) for e in events)

    def refusal(self, call: Call) -> int | None:
        """Return the status of a refusal: the test's own, or the relay's, of a message that is too large or for which there is
        no room beside the others."""
        if call.refused is None and call.held and not call.was_held and self.relay_refused(call):
            return GrpcStatus.RESOURCE_EXHAUSTED
        return call.refused

    def relay_refused(self, call: Call) -> bool:
        return call.stream in self.wire.relay._refused.calls or self.seen_by_client(call).last(b"grpc-status") == b"8"


def block_of(extra: Extra) -> Block:
    return [(name, VALUES[value]) for name, value in extra]


def pick(calls: list[Call], which: int) -> Call:
    return calls[which % len(calls)]


def sendable(peer: Peer, stream: int) -> int:
    return min(peer.connection.local_flow_control_window(stream), peer.connection.max_outbound_frame_size)


RelayMachine.TestCase.settings = settings(
    max_examples=repeats(60, long=300),
    stateful_step_count=repeats(40, long=80),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRelay = pytest.mark.repeats(RelayMachine.TestCase)
