"""Make unary gRPC calls as a client, one after the other on one HTTP/2 connection.

Only one call is open at a time, so no stream has to be looked up, and a call that times out closes its connection. A message
over the limit is refused before all of it has arrived. This client exists because a container waits while a hook is asked, and
grpcio's client takes half a millisecond more per question.

Source: RFC 9113; gRPC's PROTOCOL-HTTP2.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final
from urllib.parse import unquote

from lading.http2 import frames, messages
from lading.http2.blocks import BlockReader
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError
from lading.http2.headers import CACHED_BLOCK, Fields, HeaderLane
from lading.http2.messages import GrpcStatus
from lading.http2.sending import Sender

_ENABLE_PUSH: Final = 0x2  # RFC 9113 6.5.2
_TWO_SETTINGS: Final = Struct(">HLHL")
_LONGEST_TIMEOUT_MS: Final = 99_999_999  # a timeout has eight digits at most
_PSEUDO_FIELDS: Final[Fields] = ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"))
_FIELDS: Final[Fields] = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
# The status of a call whose stream was reset (PROTOCOL-HTTP2.md, "Errors").
_STATUS_OF_RESET: Final[dict[int, int]] = {
    ErrorCode.REFUSED_STREAM: GrpcStatus.UNAVAILABLE,
    ErrorCode.CANCEL: GrpcStatus.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int  # google.rpc.Code
    message: str = ""  # text of an error
    content: bytes = b""


class Exchange:
    def __init__(self, *, limit: int) -> None:
        """Create the state of a new connection. `limit`: bytes of the largest accepted message."""
        self.answer: Reply | None = None  # reply to the last call; None while it is open
        self.ended = False  # no other call can be made on this connection
        self._limit = limit
        self._out: list[bytes] = []
        self._sender = Sender()
        self._question = self._sender.opened(-1)  # the request of the last call
        # The fields below hold the server's side.
        self._reader = FrameReader()
        self._blocks = BlockReader(cached_block=CACHED_BLOCK)
        self._content = bytearray()
        self._uncredited = 0  # received bytes of DATA, with padding, for which the connection has no credit yet

    def begin(self, path: bytes, message: bytes, *, timeout_s: float) -> bytes:
        """Begin a call and return the bytes to send. Allowed once the previous call has its answer."""
        if self._question.stream < 0:
            self._greet()
        elif self._uncredited:
            self._out.append(frames.window_update(0, self._uncredited))
        self.answer, self._uncredited = None, 0
        self._content.clear()
        self._question = self._sender.opened(self._question.stream + 2)
        timeout_ms = min(max(1, int(timeout_s * 1000)), _LONGEST_TIMEOUT_MS)
        self._out.append(self._sender.headers(self._question.stream, _block(path, timeout_ms), end_stream=False))
        self._question.left = memoryview(messages.prefixed(message))
        self._send()
        return self._taken()

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the server. Return the bytes to send back. Raises MalformedError if the connection is unusable."""
        buffer = self._reader.feed(data)
        for kind, flags, stream, start, end in self._reader.frames(buffer):
            self._frame(buffer, kind, flags, stream, start + frames.HEADER_LENGTH, end)
        return self._taken()

    def _taken(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _greet(self) -> None:
        """Send the preface, with windows larger than any answer, so that they need no update during an answer."""
        window = self._limit + (1 << 16)
        settings = _TWO_SETTINGS.pack(_ENABLE_PUSH, 0, frames.INITIAL_WINDOW_SIZE, window)
        self._out += (frames.PREFACE, frames.frame(frames.SETTINGS, 0, 0, settings), frames.window_update(0, window))

    def _frame(self, buffer: bytes, kind: int, flags: int, stream: int, start: int, end: int) -> None:
        self._blocks.meet(kind, stream)
        match kind:
            case frames.DATA:
                self._uncredited += end - start
                if self._is_open(stream):
                    self._data(buffer, flags, start, end)
            case frames.HEADERS | frames.CONTINUATION:
                fields = self._blocks.read(buffer, kind, flags, stream, start, end)
                if fields is not None and self._is_open(stream):
                    self._answered(dict(fields), fields)
            case frames.RST_STREAM if self._is_open(stream):
                code = frames.unsigned(buffer, start)
                self._fail(_STATUS_OF_RESET.get(code, GrpcStatus.INTERNAL), f"the call was reset with HTTP/2 error {code}")
            case frames.SETTINGS if not flags & frames.ACK:
                self._out.append(self._sender.announced(buffer[start:end], [self._question]))
                self._send()
            case frames.PING if not flags & frames.ACK:
                self._out.append(frames.frame(frames.PING, frames.ACK, 0, buffer[start:end]))
            case frames.GOAWAY:
                self.ended = True
                stream = self._question.stream
                if end - start >= 8 and self._is_open(stream) and frames.unsigned(buffer, start) < stream:
                    self._fail(GrpcStatus.UNAVAILABLE, "the server is going away")
            case frames.WINDOW_UPDATE:
                question = self._question if stream == self._question.stream else None
                self._sender.credited(stream, question, frames.unsigned(buffer, start))
                self._send()
            case frames.PUSH_PROMISE:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def _send(self) -> None:
        self._out += self._sender.data(self._question, end_stream=True)

    def _is_open(self, stream: int) -> bool:
        return stream == self._question.stream and self.answer is None

    def _data(self, buffer: bytes, flags: int, start: int, end: int) -> None:
        start, end = frames.unpadded(buffer, flags, start, end)
        self._content += memoryview(buffer)[start:end]
        if len(self._content) >= messages.PREFIX_LENGTH:
            _, length = messages.parse_prefix(self._content)
            if length > self._limit:
                return self._fail(GrpcStatus.RESOURCE_EXHAUSTED, messages.too_large(length, self._limit))
            if len(self._content) > messages.PREFIX_LENGTH + length:
                return self._fail(GrpcStatus.INTERNAL, "more than one message")
        if flags & frames.END_STREAM:
            return self._fail(GrpcStatus.INTERNAL, "the answer has no status")
        return None

    def _answered(self, named: dict[bytes, bytes], fields: Fields) -> None:
        over = self._blocks.ends_stream
        http = named.get(b":status", b"200")
        if http != b"200" and b"grpc-status" not in named:
            if over or not http.startswith(b"1"):  # a 1xx status is followed by the final one
                self._fail(GrpcStatus.UNKNOWN, f"HTTP status {http[:3]!r}", over=over)
        elif over:
            status = messages.parse_status(fields)
            if status == GrpcStatus.OK:
                self._complete()
            else:
                self._fail(status, unquote(named.get(b"grpc-message", b"").decode("ascii", "replace")), over=True)

    def _complete(self) -> None:
        content = self._content
        if len(content) < messages.PREFIX_LENGTH:
            return self._fail(GrpcStatus.INTERNAL, "the answer has no message", over=True)
        _, length = messages.parse_prefix(content)
        if content[0] or len(content) < messages.PREFIX_LENGTH + length:
            return self._fail(GrpcStatus.INTERNAL, "the message is compressed or incomplete", over=True)
        return self._end(Reply(status=GrpcStatus.OK, content=bytes(memoryview(content)[messages.PREFIX_LENGTH :])), over=True)

    def _fail(self, status: int, message: str, *, over: bool = False) -> None:
        self._end(Reply(status=status, message=message), over=over)

    def _end(self, answer: Reply, *, over: bool) -> None:
        """End the call. `over`: the server ended the stream. If the server still sends, or ended the call before it read the
        whole question, the stream would need a reset: the connection is closed instead."""
        self.answer = answer
        self.ended = self.ended or bool(self._question.left) or not over


@lru_cache(maxsize=64)
def _block(path: bytes, timeout_ms: int) -> bytes:
    """Return a call's header block, as literals that need no table. Cached, because most questions have the same time left."""
    fields = (*_PSEUDO_FIELDS, (b":path", path), *_FIELDS, (b"grpc-timeout", b"%dm" % timeout_ms))
    return HeaderLane().render(fields)
