"""Make unary gRPC calls, one after the other on one connection to a Unix socket.

Only one call is open at a time, so a call that times out closes its connection, and the server learns of the timeout. A message
over the limit is refused before all of it has arrived. This client exists because a container waits while a hook is asked, and
grpcio's client takes half a millisecond more per question.

Source: RFC 9113; gRPC's PROTOCOL-HTTP2.md.
"""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast
from urllib.parse import unquote

from lading.http2 import frames, messages
from lading.http2.connection import CREDIT, Connection, Stream
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane
from lading.http2.messages import GrpcStatus
from lading.sockets import dial

_ENABLE_PUSH: Final = 0x2  # RFC 9113 6.5.2
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


class ClientConnection(Connection[Stream], asyncio.Protocol):
    def __init__(self, *, limit: int, lost: Callable[["ClientConnection"], None] = lambda _: None) -> None:
        """Create the client's end. `limit`: bytes of the largest accepted message. `lost` is called once it is closed."""
        super().__init__()
        self.answer: Reply | None = None  # reply to the last call; None while the call is open
        self.ended = False  # no other call can be made on this connection
        self.settled: asyncio.Future[Reply] | None = None  # the reply to the last `call`
        self._limit = limit
        self._lost = lost
        self._transport: asyncio.Transport | None = None

    # ---- calls

    @classmethod
    async def dial(
        cls, path: str, *, limit: int, lost: Callable[["ClientConnection"], None] = lambda _: None
    ) -> "ClientConnection":
        """Connect to the server's socket. Raises OSError."""
        return await dial(lambda: cls(limit=limit, lost=lost), path)

    async def call(self, path: bytes, message: bytes, *, timeout_s: float) -> Reply:
        """Make a call, and return the reply. `timeout_s` is for the server: the caller ends a late call with `abort`. Raises
        OSError if the connection is lost. Allowed once the previous call has its reply."""
        transport = self._open_transport
        if transport is None:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        self.settled = asyncio.get_running_loop().create_future()
        transport.write(self.begin(path, message, timeout_s=timeout_s))
        return await self.settled

    @property
    def reusable(self) -> bool:
        """Return whether another call can be made. After a timeout it cannot: the call is still open at the server, until the
        connection is closed."""
        return self.answer is not None and not self.ended and self._open_transport is not None

    @property
    def _open_transport(self) -> asyncio.Transport | None:
        return None if self._transport is None or self._transport.is_closing() else self._transport

    def begin(self, path: bytes, message: bytes, *, timeout_s: float) -> bytes:
        """Begin a call without I/O, and return the bytes to send. `receive` takes the server's bytes until `answer` is set."""
        if not self.last_stream:
            window = self._limit + 2 * CREDIT  # larger than any answer, so that windows need no update during an answer
            self.out.append(frames.PREFACE)
            self.greet({_ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: window}, credit=window)
        self.answer = None
        stream = self.open(Stream(self.last_stream + 2 if self.last_stream else 1))
        timeout_ms = min(max(1, int(timeout_s * 1000)), _LONGEST_TIMEOUT_MS)
        self.send_block(stream.id, _block(path, timeout_ms), end_stream=False)
        stream.unsent = memoryview(messages.prefixed(message))
        self.send(stream)
        return self.take()

    # ---- the socket

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            out = self.receive(data)
        except MalformedFrameError as e:
            self._break(ConnectionError(errno.EPROTO, f"not gRPC: {e}"))
            return
        if out and (transport := self._open_transport):
            transport.write(out)
        if self.answer is not None and self.settled is not None and not self.settled.done():
            self.settled.set_result(self.answer)
        if self.ended and not self.streams:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(ConnectionResetError(errno.ECONNRESET, "the connection was closed"))
        self._lost(self)

    def _break(self, error: OSError) -> None:
        if self.settled is not None and not self.settled.done():
            self.settled.set_exception(error)
        self.abort()

    # ---- the server's frames

    def receive_data(self, stream: Stream) -> None:
        content = stream.content
        if len(content) >= messages.PREFIX_LENGTH:
            _, length = messages.parse_prefix(content)
            if length > self._limit:
                return self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, messages.too_large(length, self._limit))
            if len(content) > messages.PREFIX_LENGTH + length:
                return self._fail(stream, GrpcStatus.INTERNAL, "more than one message")
        if stream.ended:
            return self._fail(stream, GrpcStatus.INTERNAL, "the answer has no status")
        return None

    def receive_reset(self, stream: Stream, code: int) -> None:
        status = _STATUS_OF_RESET.get(code, GrpcStatus.INTERNAL)
        self._fail(stream, status, f"the call was reset with HTTP/2 error {code}")

    def receive_goaway(self, last_stream: int) -> None:
        self.ended = True
        for stream in [stream for stream in self.streams.values() if stream.id > last_stream]:
            self._fail(stream, GrpcStatus.UNAVAILABLE, "the server is going away")

    def receive_fields(self, stream: Stream, fields: Fields) -> None:
        named = dict(fields)
        http = named.get(b":status", b"200")
        if http != b"200" and b"grpc-status" not in named:
            if stream.ended or not http.startswith(b"1"):  # a 1xx status is followed by the final one
                self._fail(stream, GrpcStatus.UNKNOWN, f"HTTP status {http[:3]!r}")
        elif stream.ended:
            status = messages.parse_status(fields)
            if status == GrpcStatus.OK:
                self._complete(stream)
            else:
                self._fail(stream, status, unquote(named.get(b"grpc-message", b"").decode("ascii", "replace")))

    # ---- the end of a call

    def _complete(self, stream: Stream) -> None:
        content = stream.content
        if len(content) < messages.PREFIX_LENGTH:
            return self._fail(stream, GrpcStatus.INTERNAL, "the answer has no message")
        _, length = messages.parse_prefix(content)
        if content[0] or len(content) < messages.PREFIX_LENGTH + length:
            return self._fail(stream, GrpcStatus.INTERNAL, "the message is compressed or incomplete")
        return self._end(stream, Reply(status=GrpcStatus.OK, content=bytes(memoryview(content)[messages.PREFIX_LENGTH :])))

    def _fail(self, stream: Stream, status: int, message: str) -> None:
        self._end(stream, Reply(status=status, message=message))

    def _end(self, stream: Stream, answer: Reply) -> None:
        """End the call. If the server still sends, or ended the call before it read the whole question, the stream would need
        a reset: the connection is closed instead."""
        self.streams.pop(stream.id, None)
        self.answer = answer
        self.ended = self.ended or bool(stream.unsent) or not stream.ended


@lru_cache(maxsize=64)
def _block(path: bytes, timeout_ms: int) -> bytes:
    """Return a call's header block, as literals that need no table. Cached, because most questions have the same time left."""
    fields = (*_PSEUDO_FIELDS, (b":path", path), *_FIELDS, (b"grpc-timeout", b"%dm" % timeout_ms))
    return HeaderLane().render(fields)
