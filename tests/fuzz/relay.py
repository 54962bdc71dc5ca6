"""One play (relay_script.py) through a `Relay`, and everything that must hold whatever the two sides say.

No exception; no work out of proportion; malformed input ends with `broken` and a code, and nothing more comes out. Out come
whole frames, each header block in one piece; only DATA of the runtime's may be half out, as far as it came. An independent
HPACK decoder at each far end reads the blocks that were put in, in order, except those of refused calls. The runtime never gets
more DATA than it gave window for, and none of a refused call. Every held call ends once; afterwards nothing is reserved.
"""

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.connection import Relay
from runtimeproxy.relay.events import CallCancelled, CallEnded, CallHeld, Side
from tests.fakes.wire import HELD
from tests.fuzz.reading import Block, Reading
from tests.fuzz.relay_script import Bytes, Decide, Decision, Script

MAX_MESSAGE = 1000
BUDGET = 2500
OURS = b"said by the relay"
TOO_LARGE = b"grpc: received message larger than max"


class Play:
    def __init__(self) -> None:
        self.budget = HoldBudget(BUDGET)
        self.relay = Relay(held_paths=frozenset({HELD}), budget=self.budget, clock=lambda: 0.0, max_message=MAX_MESSAGE)
        self.said = {Side.CLIENT: Reading(len(frames.PREFACE)), Side.RUNTIME: Reading(0)}  # bytes sent, by sender
        self.heard = {Side.CLIENT: Reading(0), Side.RUNTIME: Reading(len(frames.PREFACE))}  # bytes received, by receiver
        self.window = frames.DEFAULT_WINDOW  # the runtime's
        self.open: set[int] = set()  # held, and no end yet
        self.observed: set[int] = set()
        self.refused: set[int] = set()
        self.ended: set[int] = set()  # streams that the client ended; the runtime judges later frames of these
        self.taken = 0
        self.given = 0

    def run(self, script: Script) -> None:
        for step in script.steps():
            match step:
                case Bytes(side, data):
                    self.receive(side, data)
                case Decide():
                    self.decide(step)
            self.scan()
            if self.relay.broken:
                break
        self.finish()

    def receive(self, side: Side, data: bytes) -> None:
        self.taken += len(data)
        for kind, flags, stream, payload in self.said[side].feed(data):
            if side is Side.CLIENT and (kind == frames.RST_STREAM or (kind < 2 and flags & frames.END_STREAM)):
                self.ended.add(stream)
            if side is Side.RUNTIME and kind == frames.WINDOW_UPDATE and stream == 0 and len(payload) == 4:
                self.window += int.from_bytes(payload, "big") & 0x7FFF_FFFF
        if side is Side.CLIENT:
            self.relay.receive_from_client(data)
        else:
            self.relay.receive_from_runtime(data)

    def decide(self, step: Decide) -> None:
        undecided = step.stream in self.open
        match step.what:
            case Decision.FORWARD:
                assert self.relay.forward(step.stream, step.message, observe=step.observe) is undecided
                self.open.discard(step.stream)
                if undecided:
                    self.taken += len(step.message or b"")
                    self.observed |= {step.stream} if step.observe else set()
            case Decision.REFUSE:
                if self.relay.refuse(step.stream, 9, OURS.decode()):
                    self.refused.add(step.stream)
                else:
                    assert not undecided
                self.open.discard(step.stream)
            case Decision.ANNOUNCE_END:
                self.relay.announce_end()

    def scan(self) -> None:
        for event in self.relay.take_events():
            match event:
                case CallHeld(stream=stream):
                    assert stream not in self.open | self.refused
                    self.open.add(stream)
                case CallCancelled(stream=stream):
                    assert stream not in self.refused
                    self.open.discard(stream)
                    self.observed.discard(stream)
                case CallEnded(stream=stream):
                    self.observed.remove(stream)
        to_runtime, to_client = self.relay.to_runtime(), self.relay.to_client()
        self.given += len(to_runtime) + len(to_client)
        for kind, _, stream, payload in self.heard[Side.RUNTIME].feed(to_runtime):
            if kind == frames.DATA:
                self.window -= len(payload)
                assert self.window >= 0
                assert stream not in self.refused - self.ended
        at_client = self.heard[Side.CLIENT]
        for _, _, stream, _ in at_client.feed(to_client):
            if stream in at_client.blocks and _says(at_client.blocks[stream][-1], TOO_LARGE):
                self.refused.add(stream)
        self.check_blocks()

    def check_blocks(self) -> None:
        for hearer, speaker in ((Side.RUNTIME, Side.CLIENT), (Side.CLIENT, Side.RUNTIME)):
            heard, text = self.heard[hearer], self.said[speaker]
            assert heard.readable
            for stream, blocks in heard.blocks.items():
                theirs = [b for b in blocks if not _is_ours(b)]
                if hearer is Side.RUNTIME or stream in self.refused:  # with holes: what the relay took of a call that ended
                    left = iter(text.blocks[stream])
                    assert all(block in left for block in theirs), (hearer, stream)
                else:
                    assert theirs == text.blocks[stream][: len(theirs)], (hearer, stream)
                assert len(blocks) - len(theirs) <= 1
        if not self.relay.broken:
            assert self.heard[Side.RUNTIME].between_frames
            if half := self.heard[Side.CLIENT].half_data:
                assert half == self.said[Side.RUNTIME].half_data
                assert half[0] not in self.relay._refused.calls  # after the barrier, the runtime says what it must not
                return  # the relay's own frames wait
            assert self.heard[Side.CLIENT].between_frames
            for stream, blocks in self.said[Side.RUNTIME].blocks.items():
                if stream not in self.refused and self.said[Side.RUNTIME].readable:
                    assert len([b for b in self.heard[Side.CLIENT].blocks[stream] if not _is_ours(b)]) == len(blocks)

    def finish(self) -> None:
        relay, broken = self.relay, self.relay.broken
        if broken:
            assert isinstance(broken.code, ErrorCode)
            relay.receive_from_client(bytes(100))
            relay.receive_from_runtime(bytes(100))
        relay.end(OURS.decode())
        self.scan()
        assert relay.broken
        assert not self.open
        assert not self.observed
        assert self.budget._free == BUDGET
        assert not self.budget._waiting
        # A block of table references grows when it is re-encoded, by at most the table's size for each byte.
        assert self.given <= 200_000 + 4 * self.taken + 4200 * sum(map(len, self.said[Side.RUNTIME].blocks.values()))


def _is_ours(block: Block) -> bool:
    return _says(block, OURS) or _says(block, TOO_LARGE)


def _says(block: Block, text: bytes) -> bool:
    return bool(block) and block[-1][1].startswith(text)


def play(data: bytes) -> Play:
    """Raises AssertionError, or whatever the relay raised."""
    played = Play()
    played.run(Script(data))
    return played
