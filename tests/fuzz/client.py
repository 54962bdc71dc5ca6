"""The proxy's `ClientConnection` and a hook server, and what must hold whatever the server says.

No exception but MalformedError, which ends the connection; what is said is whole, readable, fits the server's windows, and is
the question. A call has one answer, at the latest when its stream is over; one that is OK is what the server sent, and no
more than the limit is kept of one. A proper reply to a fresh call is its answer.
"""

from typing import Final

from lading.grpc.client import ClientConnection, Reply
from lading.http2 import frames
from lading.http2.frames import MalformedFrameError
from lading.http2.messages import GrpcStatus, prefixed
from tests.fuzz.peer import SIZES, Peer
from tests.fuzz.reading import Reading, unpadded
from tests.fuzz.tape import Tape

LIMIT: Final = 4000
BEGUN: Final = {b":status": b"200", b"content-type": b"application/grpc"}
STATUSES: Final = (b"0", b"0", b"0", b"5", b"999", b"x", b"")
REPLIES: Final[tuple[dict[bytes, bytes], ...]] = (
    BEGUN,
    BEGUN,
    {b":status": b"100"},
    {b":status": b"503"},
    {b":status": b"404", b"grpc-status": b"0"},
    {},
)


class Play:
    def __init__(self, data: bytes) -> None:
        self.server = Peer(Tape(data))
        self.client = ClientConnection(limit=LIMIT)
        self.heard = Reading(len(frames.PREFACE))
        self.question = b""
        self.asked = b""  # bytes of the request that have arrived
        self.over = True  # the stream, by what the server said
        self.fresh = False  # nothing was said of it yet
        self.content = b""
        self.answer: Reply | None = None
        self.broken = False
        self.acknowledged = 0
        self.taken = self.given = self.questions = 0
        self._steps = (*[self._begin] * 3, *[self._reply] * 2, self._headers, self._trailers, self._data)

    def run(self) -> None:
        self._begin()
        while self.server.tape.more and not self.broken:
            step = self.server.tape.pick((*self._steps, *self.server.anything))
            for piece in self.server.pieces(step() or b""):
                self.say(piece)
        if not self.broken and self.server.said.between_frames:
            self.finish()
        assert self.given <= 1000 + 20 * self.taken + self.questions

    def say(self, data: bytes) -> None:
        if self.broken:
            return
        self.taken += len(data)
        try:
            out = self.client.receive(data)
        except MalformedFrameError:
            self.broken = True
            return
        for frame in self.server.said.feed(data):
            self.meet(*frame)
        self.hear(out)
        self.server.room.settle()
        assert all(len(stream.content) <= LIMIT + 5 + frames.DEFAULT_MAX_FRAME_SIZE for stream in self.client.streams.values())
        if self.answer is not None:
            assert self.client.answer is self.answer
        self.answer = self.client.answer
        assert self.answer is not None or not self.over

    def meet(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A frame of the server's that was taken."""
        self.server.room.meet(kind, flags, stream, payload)
        if stream != self.server.newest:
            return
        self.fresh = self.fresh and kind not in (frames.DATA, frames.HEADERS, frames.RST_STREAM)
        if kind == frames.DATA and not self.over:
            self.content += unpadded(flags, payload)
        ends = bool(flags & frames.END_STREAM) if kind == frames.DATA else self.server.said.ended_block
        self.over = self.over or kind == frames.RST_STREAM or (ends and kind in (0, frames.HEADERS, frames.CONTINUATION))
        answer = self.client.answer
        if self.over and self.answer is None and answer and answer.status == GrpcStatus.OK:
            assert self.content == prefixed(answer.content)
            assert dict(self.server.said.blocks[stream][-1])[b"grpc-status"].strip() == b"0"

    def hear(self, data: bytes) -> None:
        self.given += len(data)
        room = self.server.room
        for kind, flags, stream, payload in self.heard.feed(data):
            match kind:
                case frames.DATA:
                    assert stream == self.server.newest
                    room.used(stream, len(payload))
                    assert min(room.in_all, room.of(stream)) >= 0
                    assert len(payload) <= room.max_frame
                    self.asked += payload
                    assert bool(flags & frames.END_STREAM) is (self.asked == self.question)
                case frames.HEADERS:
                    fields = dict(self.heard.blocks[stream][-1])
                    assert (fields[b":path"], len(self.heard.blocks[stream])) == (b"/test/Echo", 1)
                case frames.SETTINGS:
                    self.acknowledged += bool(flags & frames.ACK)
        assert self.question.startswith(self.asked)
        assert self.heard.readable
        assert self.heard.between_frames

    def finish(self) -> None:
        """Room for everything; then the question is asked whole, unless its answer came before and ended the connection."""
        room = self.server.room
        for credit in self.server.widen([self.server.newest]):
            self.say(credit)
        assert not self.broken
        assert self.asked == self.question or (self.client.answer and self.client.ended)
        assert self.acknowledged == room.said

    # ---- what is done besides

    def _begin(self) -> None:
        """Another call, where one is allowed."""
        if self.server.newest > 0 and (self.client.answer is None or self.client.ended):
            return
        self.server.newest += 2
        self.question, self.asked = prefixed(bytes(self.server.tape.pick(SIZES))), b""
        self.questions += 200 + 2 * len(self.question)
        self.over, self.fresh, self.content, self.answer = False, True, b"", None
        self.hear(self.client.begin(b"/test/Echo", self.question[5:], timeout_s=self.server.tape.byte() / 7))

    def _headers(self) -> bytes:
        end_stream = self.server.tape.byte() > 0xC0
        return self.server.headers(self.server.stream(), self.server.tape.pick(REPLIES), end_stream=end_stream)

    def _data(self) -> bytes:
        content = self.server.tape.pick((prefixed(bytes(self.server.tape.pick(SIZES))), self.server.tape.take(6)))
        return self.server.data(self.server.stream(), content, end_stream=self.server.tape.byte() > 0xE0)

    def _trailers(self) -> bytes:
        fields = {b"grpc-status": self.server.tape.pick(STATUSES), b"grpc-message": b"%C3%A9 %zz \xff"}
        return self.server.headers(self.server.stream(), fields, end_stream=True)

    def _reply(self) -> bytes:
        """A proper one."""
        stream, size = self.server.newest, self.server.tape.pick(SIZES)
        text = self.server.headers(stream, BEGUN, end_stream=False)
        text += self.server.data(stream, prefixed(bytes(size)), end_stream=False)
        text += self.server.headers(stream, {b"grpc-status": b"0"}, end_stream=True)
        if self.fresh and self.answer is None and self.server.proper:
            self.say(text)
            assert self.answer
            assert self.answer.status == (GrpcStatus.OK if size <= LIMIT else GrpcStatus.RESOURCE_EXHAUSTED)
            assert len(self.answer.content) == (size if size <= LIMIT else 0)
            return b""
        return text


def play(data: bytes) -> None:
    """Raises AssertionError, or whatever the client raised."""
    Play(data).run()
