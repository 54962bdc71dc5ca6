"""A fuzz input as steps of both sides of the relay and of the gate that decides: a mutated input is still a list of steps.

It takes any bytes; there is no invalid script. It returns what each step puts on a side's wire, and the decisions. Frames are
well formed unless a step says otherwise (`mangle`, raw frames, raw bytes, broken blocks), and each side's header blocks come
from an encoder of its own, so that most inputs get past the first frame.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import hpack

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.events import Side
from tests.fakes.wire import FREE, HELD
from tests.fuzz import peer
from tests.fuzz.tape import Tape

SIZES = (*peer.SIZES[:11], 16_383, *peer.SIZES[11:])
SETTINGS = (*peer.SETTINGS[:3], (0x3, (0, 100)), *peer.SETTINGS[3:])
EXTRAS = (*peer.EXTRAS, ((b"grpc-timeout", b"2S"),))


class Decision(Enum):
    FORWARD = "forward"
    REFUSE = "refuse"
    ANNOUNCE_END = "announce_end"


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes that arrive from one side at once."""

    side: Side
    data: bytes


@dataclass(frozen=True, slots=True)
class Decide:
    what: Decision
    stream: int = 0
    message: bytes | None = None
    observe: bool = False


Step = Bytes | Decide


@dataclass
class _Speaker:
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    unacknowledged: deque[int | None] = field(default_factory=deque)  # table sizes that the other side announced


class Script:
    def __init__(self, data: bytes) -> None:
        self._tape = Tape(data)
        self._speakers = {side: _Speaker() for side in Side}
        self._last_stream = -1
        self._chunk = 0  # how the next bytes are cut; 0: not at all
        self._mangle = 0  # where a bit of the next frames is turned, from 1
        self._steps: tuple[Callable[[], Step | None], ...] = (
            self._request,
            self._request,
            self._message,
            self._message,
            self._request_data,
            self._answer,
            self._answer,
            self._reply_data,
            self._reset,
            self._window_update,
            self._window_update,
            self._settings,
            self._acknowledge,
            self._acknowledge,
            self._forward,
            self._forward,
            self._refuse,
            self._refuse,
            self._ping,
            self._goaway,
            self._raw_frame,
            self._raw_bytes,
            self._broken_block,
            self._split_block,
            self._set_chunk,
            self._set_mangle,
            lambda: Decide(Decision.ANNOUNCE_END),
        )

    def steps(self) -> Iterator[Step]:
        """Both sides greet, as any two that got this far; then what the data says."""
        yield Bytes(Side.CLIENT, frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0))
        yield Bytes(Side.RUNTIME, frames.frame(frames.SETTINGS, 0, 0))
        for side in Side:
            yield Bytes(side, frames.frame(frames.SETTINGS, frames.ACK, 0))
        while self._tape.more:
            step = self._steps[self._tape.byte() % len(self._steps)]()
            match step:
                case Bytes(side, data):
                    yield from (Bytes(side, piece) for piece in self._pieces(data))
                case Decide():
                    yield step
                case None:
                    pass

    def _stream(self) -> int:
        return self._tape.stream(self._last_stream)

    def _side(self) -> Side:
        return Side.CLIENT if self._tape.byte() & 1 else Side.RUNTIME

    def _pieces(self, data: bytes) -> list[bytes]:
        if self._mangle and data:
            data, self._mangle = peer.damaged(data, self._mangle - 1), 0
        return peer.cut(data, self._chunk)

    # ---- what can happen

    def _request(self) -> Step:
        self._last_stream += 2
        path = self._tape.pick((HELD, HELD, HELD, FREE))
        fields = [(b":method", b"POST"), (b":path", path), (b"content-type", b"application/grpc"), *self._tape.pick(EXTRAS)]
        return self._headers(Side.CLIENT, self._last_stream, fields, end_stream=self._tape.byte() > 0xE0)

    def _message(self) -> Step:
        """A whole message, in frames of lawful size."""
        flags = self._tape.byte()
        return self._frames_of(Side.CLIENT, self._stream(), prefixed(bytes(self._tape.pick(SIZES))), flags)

    def _request_data(self) -> Step:
        flags, size = self._tape.byte(), self._tape.pick(SIZES)
        return self._frames_of(Side.CLIENT, self._stream(), self._tape.take(5).ljust(size, b"\0")[:size], flags)

    def _reply_data(self) -> Step:
        flags, size = self._tape.byte(), self._tape.pick(SIZES)
        return self._frames_of(Side.RUNTIME, self._stream(), bytes(size), flags)

    def _frames_of(self, side: Side, stream: int, data: bytes, flags: int) -> Bytes:
        padding = flags >> 4 if flags & frames.PADDED else None
        return Bytes(side, peer.in_frames(stream, data, padding=padding, end_stream=bool(flags & frames.END_STREAM)))

    def _answer(self) -> Step:
        kind, stream, extra = self._tape.byte() % 4, self._stream(), self._tape.pick(EXTRAS)
        begun, ended = [(b":status", b"200")], [(b"grpc-status", b"%d" % (kind * 3)), (b"grpc-message", b"runtime")]
        fields = (begun, ended, begun + ended, begun)[kind]
        return self._headers(Side.RUNTIME, stream, [*fields, *extra], end_stream=kind in (1, 2))

    def _headers(self, side: Side, stream: int, fields: list[tuple[bytes, bytes]], *, end_stream: bool) -> Step:
        return Bytes(side, frames.header_block(stream, self._speakers[side].encoder.encode(fields), end_stream=end_stream))

    def _reset(self) -> Step:
        return Bytes(self._side(), frames.rst_stream(self._stream(), ErrorCode.CANCEL))

    def _window_update(self) -> Step:
        side, stream = self._side(), self._stream() if self._tape.byte() & 1 else 0
        return Bytes(side, frames.window_update(stream, self._tape.pick(peer.INCREMENTS)))

    def _settings(self) -> Step:
        side = self._side()
        setting, values = self._tape.pick(SETTINGS)
        value = self._tape.pick(values)
        other = Side.RUNTIME if side is Side.CLIENT else Side.CLIENT
        self._speakers[other].unacknowledged.append(value if setting == frames.HEADER_TABLE_SIZE else None)
        return Bytes(side, frames.frame(frames.SETTINGS, 0, 0, setting.to_bytes(2, "big") + value.to_bytes(4, "big")))

    def _acknowledge(self) -> Step:
        side = self._side()
        speaker = self._speakers[side]
        size = speaker.unacknowledged.popleft() if speaker.unacknowledged else None
        if size is not None:
            speaker.encoder.header_table_size = size
        return Bytes(side, frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _forward(self) -> Step:
        size = self._tape.byte()
        message = None if size & 1 else b"\xee" * SIZES[size >> 1 & 15]
        return Decide(Decision.FORWARD, self._stream(), message, observe=bool(size & 64))

    def _refuse(self) -> Step:
        return Decide(Decision.REFUSE, self._stream())

    def _ping(self) -> Step:
        content = self._tape.pick((b"12345678", b"lading\0\1"))
        return Bytes(self._side(), frames.frame(frames.PING, self._tape.byte() & frames.ACK, 0, content))

    def _goaway(self) -> Step:
        return Bytes(self._side(), frames.goaway(self._stream(), ErrorCode.NO_ERROR))

    def _raw_frame(self) -> Step:
        side, kind, flags, stream = self._side(), self._tape.byte() % 12, self._tape.byte(), self._stream()
        return Bytes(side, frames.frame(kind, flags, stream, self._tape.take(self._tape.byte() % 40)))

    def _raw_bytes(self) -> Step:
        return Bytes(self._side(), self._tape.take(self._tape.byte() % 40))

    def _broken_block(self) -> Step:
        side, stream, flags = self._side(), self._stream(), self._tape.byte()
        return Bytes(
            side, frames.frame(frames.HEADERS, flags | frames.END_HEADERS, stream, self._tape.take(self._tape.byte() % 40))
        )

    def _split_block(self) -> Step:
        side, stream, flags = self._side(), self._stream(), self._tape.byte()
        if side is Side.CLIENT and flags & 2:
            self._last_stream = stream = self._last_stream + 2
        block = self._speakers[side].encoder.encode([(b":path", HELD), (b":status", b"200"), *self._tape.pick(EXTRAS)])
        first, last = peer.split_block(stream, block, flags)
        return Bytes(side, first + (last if flags & 0x80 else b""))

    def _set_chunk(self) -> None:
        self._chunk = self._tape.byte() % 40

    def _set_mangle(self) -> None:
        self._mangle = 1 + self._tape.byte()
