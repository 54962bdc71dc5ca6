"""A client and the hook server's `ServerConnection`, and what must hold whatever the client says.

No exception but MalformedError, which ends the connection; nothing out of proportion is said; frames are whole, header blocks
can be read by an independent decoder, DATA fits the client's windows and frames. Of each call comes one answer at most, and of
one that was asked whole, once the client gives room, exactly the right one. What is over is forgotten.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lading.grpc.server import CallError, Later, Method, ServerConnection
from lading.http2 import frames
from lading.http2.frames import MalformedFrameError
from lading.http2.messages import GrpcStatus, prefixed
from tests.fuzz.peer import SIZES, Peer
from tests.fuzz.reading import Reading, unpadded
from tests.fuzz.tape import Tape

ECHO, FAIL, BREAK, NONE, SLOW = b"/test/Echo", b"/test/Fail", b"/test/Break", b"/test/None", b"/test/Slow"
KINDS: Final = (b"application/grpc", b"application/grpc", b"application/grpc+proto", b"text/html")


def fail(message: bytes) -> bytes:
    raise CallError(GrpcStatus.INVALID_ARGUMENT, "100 % wrong")


def break_(message: bytes) -> bytes:
    raise RuntimeError


async def slowly(message: bytes) -> bytes:
    return message


METHODS: Mapping[bytes, Method] = {ECHO: lambda message: message, FAIL: fail, BREAK: break_, SLOW: slowly}


@dataclass(slots=True)
class Call:
    """A call as the client sees it."""

    content: bytes = b""
    whole: bool = False
    given_up: bool = False
    reply: bytes = b""
    status: int | None = None
    refused: bool = False


class Play:
    def __init__(self, data: bytes) -> None:
        self.client = Peer(Tape(data))
        self.later: dict[int, Later] = {}
        self.server = ServerConnection(lambda _: METHODS, failed=lambda error: None, later=self._defer)
        self.heard = Reading(0)
        self.calls: dict[int, Call] = defaultdict(Call)
        self.acknowledged = 0
        self.broken = False
        self.taken = self.given = 0
        self._steps = (
            *(self._ask, self._ask, self._ask, self._open, self._open, self._send, self._send, self._end, self._crowd),
            self._answer,
        )

    def run(self) -> None:
        client, tape = self.client, self.client.tape
        self.hear(self.server.begin())
        self.server.receive(frames.PREFACE)
        while tape.more and not self.broken:
            step = tape.pick((*self._steps, *client.anything))
            for piece in client.pieces(step()):
                self.say(piece)
        self._answer_all()  # also on a connection that is over
        if not self.broken and client.said.between_frames:
            self.finish()
        assert self.given <= 2000 + 25 * self.taken

    def say(self, data: bytes) -> None:
        if self.broken:
            return
        self.taken += len(data)
        try:
            out = self.server.receive(data)
        except MalformedFrameError as e:
            self.broken = True
            out = self.server.farewell(e.code)
        else:
            for frame in self.client.said.feed(data):
                self.meet(*frame)
        self.hear(out)
        self.client.room.settle()

    def meet(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A frame of the client's that was taken."""
        self.client.room.meet(kind, flags, stream, payload)
        if kind == frames.HEADERS:
            self.client.newest = max(self.client.newest, stream)
        call = self.calls[stream]
        if kind == frames.DATA and stream in self.client.said.blocks and not (call.whole or call.given_up or call.refused):
            call.content += unpadded(flags, payload)
        if kind == frames.RST_STREAM and stream in self.client.said.blocks:
            self.calls[stream].given_up = True
        ends = bool(flags & frames.END_STREAM) if kind == frames.DATA else self.client.said.ended_block
        if ends and kind in (frames.DATA, frames.HEADERS, frames.CONTINUATION) and stream in self.client.said.blocks:
            self.calls[stream].whole = True

    def hear(self, data: bytes) -> None:
        self.given += len(data)
        room = self.client.room
        for kind, flags, stream, payload in self.heard.feed(data):
            call = self.calls[stream]
            match kind:
                case frames.DATA:
                    assert call.status is None
                    assert self.heard.blocks[stream]
                    room.used(stream, len(payload))
                    assert not payload or min(room.in_all, room.of(stream)) >= 0
                    assert len(payload) <= room.max_frame
                    call.reply += payload
                case frames.HEADERS:
                    assert call.status is None
                    assert flags & frames.END_HEADERS
                    fields = dict(self.heard.blocks[stream][-1])
                    if flags & frames.END_STREAM:
                        call.status = int(fields[b"grpc-status"])
                    else:
                        assert (fields[b":status"], len(self.heard.blocks[stream])) == (b"200", 1)
                case frames.RST_STREAM:
                    call.refused = True
                case frames.SETTINGS:
                    self.acknowledged += bool(flags & frames.ACK)
        assert self.heard.readable
        assert self.heard.between_frames

    def finish(self) -> None:
        """Room for everything; then everything that was asked is answered."""
        room = self.client.room
        for credit in self.client.widen(self.server.streams):
            self.say(credit)
        assert not self.broken
        self._answer_all()
        assert self.acknowledged == room.said
        for stream in self.client.said.blocks:
            call = self.calls[stream]
            if call.whole and not call.given_up and not call.refused:
                assert (call.status, call.reply) == self.expected(stream, call), stream
        waiting = {stream for stream in self.client.said.blocks if not self.calls[stream].whole}
        assert self.server.streams.keys() == {s for s in waiting if not (self.calls[s].given_up or self.calls[s].refused)}

    def expected(self, stream: int, call: Call) -> tuple[int, bytes]:
        fields = dict(self.client.said.blocks[stream][0])
        path, content = fields.get(b":path", b""), call.content
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            return GrpcStatus.INTERNAL, b""
        if path not in METHODS:
            return GrpcStatus.UNIMPLEMENTED, b""
        if len(content) >= 5 and content[0]:
            return GrpcStatus.UNIMPLEMENTED, b""
        if len(content) < 5 or len(content) - 5 != int.from_bytes(content[1:5], "big") or path == FAIL:
            return GrpcStatus.INVALID_ARGUMENT, b""
        return (GrpcStatus.UNKNOWN, b"") if path == BREAK else (GrpcStatus.OK, prefixed(content[5:]))

    # ---- what the client does of its own

    def _open(self, *, end_stream: bool = False) -> bytes:
        self.client.newest += 2
        path, kind = self.client.tape.pick((ECHO, ECHO, ECHO, FAIL, BREAK, NONE, SLOW)), self.client.tape.pick(KINDS)
        fields = {b":method": b"POST", b":path": path, b"content-type": kind}
        return self.client.headers(self.client.newest, fields, end_stream=end_stream)

    def _ask(self) -> bytes:
        """A whole call."""
        opened = self._open()
        return opened + self.client.data(self.client.newest, prefixed(bytes(self.client.tape.pick(SIZES))), end_stream=True)

    def _send(self) -> bytes:
        content = self.client.tape.pick((prefixed(bytes(self.client.tape.pick(SIZES))), self.client.tape.take(6)))
        return self.client.data(self.client.stream(), content, end_stream=self.client.tape.byte() > 0x80)

    def _end(self) -> bytes:
        return self.client.headers(self.client.stream(), {b"x-trailer": b"1"}, end_stream=True)

    def _crowd(self) -> bytes:
        return b"".join(self._open() for _ in range(self.client.tape.byte() % 100))

    # ---- what the server's methods take their time for

    def _defer(self, _: ServerConnection, stream: int, work: Later) -> None:
        self.later[stream] = work

    def _answer(self) -> bytes:
        """One of them has ended; the client says nothing meanwhile."""
        if self.later:
            stream = self.client.tape.pick(sorted(self.later))
            try:
                self.later.pop(stream).send(None)
            except StopIteration as e:
                out = self.server.answer(stream, e.value)
                if not self.broken:
                    self.hear(out)
        return b""

    def _answer_all(self) -> None:
        while self.later:
            self._answer()


def play(data: bytes) -> None:
    """Raises AssertionError, or whatever the server raised."""
    Play(data).run()
