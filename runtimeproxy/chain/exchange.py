"""gRPC's unary calls as their client speaks them, one after the other on one HTTP/2 connection.

Enters: a call's path, message and time; bytes as the server sent them. Leaves: bytes for the server, and the call's `Answer`.
Refuses: frames and header blocks that are none (MalformedError ends the connection), and a message over its limit, before it
is there. Only one call is open at a time, so there is no stream to look up, and a call that is given up takes its connection
with it. Written because a hook is asked while a container waits: grpcio's client takes half a millisecond more for a question.

Source: RFC 9113; gRPC's PROTOCOL-HTTP2.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final
from urllib.parse import unquote

from runtimeproxy.relay import frames, messages
from runtimeproxy.relay.frames import ErrorCode, FrameReader, MalformedError
from runtimeproxy.relay.headers import Fields, HeaderLane
from runtimeproxy.relay.messages import Status

_ENABLE_PUSH: Final = 0x2  # RFC 9113 6.5.2
_TWO_SETTINGS: Final = Struct(">HLHL")
_MAX_BLOCK: Final = 1 << 20
_LONGEST_TIMEOUT_MS: Final = 99_999_999  # eight digits
_PSEUDO_FIELDS: Final[Fields] = ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"))
_FIELDS: Final[Fields] = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
# What a stream that was reset says of its call (PROTOCOL-HTTP2.md, "Errors").
_STATUS_OF_RESET: Final[dict[int, int]] = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int  # google.rpc.Code
    message: str = ""  # what an error says
    content: bytes = b""


class Exchange:
    def __init__(self, *, limit: int) -> None:
        """`limit`: bytes of the largest message that is taken."""
        self.answer: Answer | None = None  # of the call that was begun last
        self.ended = False  # no other call can be made here
        self._limit = limit
        self._reader = FrameReader()
        self._asking, self._answering = HeaderLane(), HeaderLane()
        self._stream = -1
        self._out: list[bytes] = []
        # What the server takes; `_room` of the open stream, `_room_in_all` of the connection.
        self._max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        self._initial_room = self._room = self._room_in_all = frames.DEFAULT_WINDOW
        self._unsent = memoryview(b"")
        # What it sent.
        self._block: bytearray | None = None  # of HEADERS that are not whole
        self._block_ends_stream = False
        self._content = bytearray()
        self._uncredited = 0  # bytes of DATA, padding too, since the connection's window was whole

    def begin(self, path: bytes, message: bytes, *, timeout_s: float) -> bytes:
        """Allowed once the call before has its answer. What is to be sent."""
        if self._stream < 0:
            self._greet()
        elif self._uncredited:
            self._out.append(frames.window_update(0, self._uncredited))
        self._stream += 2
        self.answer, self._uncredited, self._room = None, 0, self._initial_room
        self._block_ends_stream = False
        self._content.clear()
        timeout_ms = min(max(1, int(timeout_s * 1000)), _LONGEST_TIMEOUT_MS)
        block = self._asking.render(()) + _block(path, timeout_ms)  # a size update first, where one is owed
        self._out.append(frames.header_block(self._stream, block, end_stream=False))
        self._unsent = memoryview(messages.prefixed(message))
        self._send()
        return self._taken()

    def receive(self, data: bytes) -> bytes:
        """What is to be sent in turn. MalformedError: the connection is of no use any more."""
        buffer = self._reader.feed(data)
        for kind, flags, stream, start, end in self._reader.frames(buffer):
            self._frame(buffer, kind, flags, stream, start + frames.HEADER_LENGTH, end)
        return self._taken()

    def _taken(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _greet(self) -> None:
        """Windows as large as an answer may be, so that they are never updated while it comes."""
        window = self._limit + (1 << 16)
        settings = _TWO_SETTINGS.pack(_ENABLE_PUSH, 0, frames.INITIAL_WINDOW_SIZE, window)
        self._out += (frames.PREFACE, frames.frame(frames.SETTINGS, 0, 0, settings), frames.window_update(0, window))

    def _send(self) -> None:
        """As much of the message as the server has room for."""
        while self._unsent:
            size = min(len(self._unsent), self._room, self._room_in_all, self._max_frame)
            if size <= 0:
                return
            part, self._unsent = bytes(self._unsent[:size]), self._unsent[size:]
            self._room -= size
            self._room_in_all -= size
            flags = 0 if self._unsent else frames.END_STREAM
            self._out.append(frames.frame(frames.DATA, flags, self._stream, part))

    def _frame(self, buffer: bytes, kind: int, flags: int, stream: int, start: int, end: int) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        match kind:
            case frames.DATA:
                self._uncredited += end - start
                if self._is_open(stream):
                    self._data(buffer, flags, start, end)
            case frames.HEADERS:
                self._block_ends_stream = bool(flags & frames.END_STREAM)
                self._headers(stream, flags, bytearray(), frames.block_fragment(buffer, flags, start, end))
            case frames.CONTINUATION if self._block is not None:
                self._headers(stream, flags, self._block, buffer[start:end])
            case frames.RST_STREAM if self._is_open(stream):
                code = frames.unsigned(buffer, start)
                self._fail(_STATUS_OF_RESET.get(code, Status.INTERNAL), f"the call was reset with HTTP/2 error {code}")
            case frames.SETTINGS if not flags & frames.ACK:
                self._settings(frames.settings(buffer[start:end]))
            case frames.PING if not flags & frames.ACK:
                self._out.append(frames.frame(frames.PING, frames.ACK, 0, buffer[start:end]))
            case frames.GOAWAY:
                self.ended = True
                if end - start >= 8 and self._is_open(self._stream) and frames.unsigned(buffer, start) < self._stream:
                    self._fail(Status.UNAVAILABLE, "it is going away")
            case frames.WINDOW_UPDATE:
                self._credit(stream, frames.unsigned(buffer, start))
            case frames.PUSH_PROMISE | frames.CONTINUATION:
                raise MalformedError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} that nothing calls for")

    def _is_open(self, stream: int) -> bool:
        return stream == self._stream and self.answer is None

    def _data(self, buffer: bytes, flags: int, start: int, end: int) -> None:
        start, end = frames.unpadded(buffer, flags, start, end)
        self._content += memoryview(buffer)[start:end]
        if len(self._content) >= messages.PREFIX_LENGTH:
            _, length = messages.parse_prefix(self._content)
            if length > self._limit:
                return self._fail(Status.RESOURCE_EXHAUSTED, messages.too_large(length, self._limit))
            if len(self._content) > messages.PREFIX_LENGTH + length:
                return self._fail(Status.INTERNAL, "more than one message")
        if flags & frames.END_STREAM:
            return self._fail(Status.INTERNAL, "no status came")
        return None

    def _headers(self, stream: int, flags: int, block: bytearray, fragment: bytes) -> None:
        block += fragment
        if len(block) > _MAX_BLOCK:
            raise MalformedError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {_MAX_BLOCK} bytes")
        self._block = None if flags & frames.END_HEADERS else block
        if self._block is not None:
            return
        fields = self._answering.decode(bytes(block))  # also of a call that is over: it may change the table
        if self._is_open(stream):
            self._answered(dict(fields), fields)

    def _answered(self, named: dict[bytes, bytes], fields: Fields) -> None:
        http = named.get(b":status", b"200")
        if http != b"200" and b"grpc-status" not in named:
            if not http.startswith(b"1"):  # else a better one follows
                self._fail(Status.UNKNOWN, f"HTTP status {http[:3]!r}")
        elif self._block_ends_stream:
            status = messages.parse_status(fields)
            if status == Status.OK:
                self._complete()
            else:
                self._fail(status, unquote(named.get(b"grpc-message", b"").decode("ascii", "replace")))

    def _complete(self) -> None:
        content = self._content
        if len(content) < messages.PREFIX_LENGTH:
            return self._fail(Status.INTERNAL, "no message came")
        compressed, length = messages.parse_prefix(content)
        if compressed or len(content) < messages.PREFIX_LENGTH + length:
            return self._fail(Status.INTERNAL, "the message is compressed, or not whole")
        return self._end(Answer(status=Status.OK, content=bytes(memoryview(content)[messages.PREFIX_LENGTH :])))

    def _fail(self, status: int, message: str) -> None:
        self._end(Answer(status=status, message=message))

    def _end(self, answer: Answer) -> None:
        """A server that answers, or gives up, before it has heard the whole of it would still have to be told."""
        self.answer = answer
        self.ended = self.ended or bool(self._unsent) or (answer.status != Status.OK and not self._block_ends_stream)

    def _settings(self, settings: dict[int, int]) -> None:
        if frames.INITIAL_WINDOW_SIZE in settings:
            self._room += settings[frames.INITIAL_WINDOW_SIZE] - self._initial_room
            self._initial_room = settings[frames.INITIAL_WINDOW_SIZE]
        self._max_frame = settings.get(frames.MAX_FRAME_SIZE, self._max_frame)
        if frames.HEADER_TABLE_SIZE in settings:
            self._asking.announce_table_size(settings[frames.HEADER_TABLE_SIZE])
            self._asking.acknowledge_table_size(settings[frames.HEADER_TABLE_SIZE])
        self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send()

    def _credit(self, stream: int, increment: int) -> None:
        if increment == 0:
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if stream == 0:
            self._room_in_all += increment
        elif stream == self._stream:
            self._room += increment
        if max(self._room, self._room_in_all) > frames.LARGEST_WINDOW:
            raise MalformedError(ErrorCode.FLOW_CONTROL_ERROR, "a window over 2^31-1")
        self._send()


@lru_cache(maxsize=64)
def _block(path: bytes, timeout_ms: int) -> bytes:
    """A call's header block: literals, which no table is needed to read. A hook is mostly asked with the same time left."""
    fields = (*_PSEUDO_FIELDS, (b":path", path), *_FIELDS, (b"grpc-timeout", b"%dm" % timeout_ms))
    return HeaderLane().render(fields)
