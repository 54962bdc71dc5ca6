"""Serve gRPC's unary calls on a Unix socket.

A method takes a message and returns the answer, or a coroutine for the answer: a separate task runs the coroutine while other
calls are answered. An exception becomes an error for the caller, with the status of a `CallError`. Messages over 16 MiB,
compressed messages (no compression is announced), and more than 256 calls at a time are refused. The listening socket is
systemd's, or one that drops untrusted peers (lading.sockets).

This server exists because a container waits during the hook call: a general server takes twice as long as the decision.

Source: RFC 9113; gRPC's PROTOCOL-HTTP2.md.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast

from lading.http2 import frames, messages
from lading.http2.connection import Connection, Stream
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane
from lading.http2.messages import GrpcStatus
from lading.sockets import Listener, Peer, peer_credentials, serve

MAX_MESSAGE: Final = 16 << 20  # bytes; kubelet's own limit. A hook request is much smaller than kubelet's CRI request
# Maximum bytes buffered for a client that does not read. Above it, the server does not read that client's requests either.
_HIGH_WATER: Final = 1 << 20
# Seconds that `close` waits for pending answers; systemd kills the daemon after 30 s.
DRAIN_S: Final = 5.0
_MAX_CALLS: Final = 256
_CACHED_BLOCK: Final = 512  # bytes of a cached header block; the proxy sends the same literal headers for most calls
_MAX_CONCURRENT_STREAMS: Final = 0x3  # RFC 9113 6.5.2
_BEGIN: Final = HeaderLane().render(messages.REPLY_BEGINS)
_OK: Final = HeaderLane().render(((b"grpc-status", b"0"),))

Later = Coroutine[Any, Any, bytes]
Method = Callable[[bytes], bytes | Later]
# The methods by path, for calls of the process that the argument returns.
MethodsFor = Callable[[Callable[[], Peer]], Mapping[bytes, Method]]


class CallError(Exception):
    """Hold the gRPC status and message of an error answer. A method raises it."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Call(Stream):
    __slots__ = ("fields",)

    def __init__(self, stream_id: int, fields: Fields) -> None:
        super().__init__(stream_id)
        self.fields = fields


class ServerConnection(Connection[_Call], asyncio.Protocol):
    def __init__(
        self,
        methods: MethodsFor,
        *,
        failed: Callable[[Exception], None],
        later: Callable[["ServerConnection", int, Later], object],
        closed: Callable[["ServerConnection"], None] = lambda _: None,
    ) -> None:
        """Create the server's end. `failed` gets each exception of a method that is not a CallError. `later` gets the stream id
        and the coroutine of a call that is not answered at once: pass the coroutine's result to `answer_later`."""
        super().__init__(preface=frames.PREFACE, cached_block=_CACHED_BLOCK)
        self._methods = methods(self._peer)
        self._failed = failed
        self._later = later
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._closing = False

    # ---- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._write(self.begin())
        if self._closing:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._write(self.receive(data))
        except MalformedFrameError as e:
            self._write(self.farewell(e.code))
            self._close_answered(now=True)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(self)

    def close(self) -> None:
        """Close the connection at once, or after the last answer. May be called twice."""
        if not self._closing:
            self._write(self.farewell())
            self._close_answered()

    def answer_later(self, stream_id: int, result: bytes | Exception) -> None:
        self._write(self.answer(stream_id, result))
        if self._closing:
            self._close_answered()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close_answered(self, *, now: bool = False) -> None:
        self._closing = True
        if self._transport is not None and (now or not self.waiting):
            self._transport.close()

    def _peer(self) -> Peer:
        assert self._transport is not None  # noqa: S101  a call came by it
        return peer_credentials(self._transport.get_extra_info("socket"))

    # ---- bytes, without I/O

    def begin(self) -> bytes:
        """Return the first bytes that the server sends. Its flow-control windows hold the largest message, so that no message
        needs a window update on its way."""
        window = MAX_MESSAGE + frames.DEFAULT_MAX_FRAME_SIZE
        self.greet({_MAX_CONCURRENT_STREAMS: _MAX_CALLS, frames.INITIAL_WINDOW_SIZE: window}, credit=window)
        return self.take()

    def answer(self, stream_id: int, result: bytes | Exception) -> bytes:
        """Return the bytes that answer a call whose coroutine has ended; no bytes if the caller has given up the call."""
        call = self.streams.get(stream_id)
        if isinstance(result, Exception):
            self._answer_error(call, result)
        elif call is not None:
            self._answer(call, result)
        return self.take()

    @property
    def waiting(self) -> bool:
        """Return whether a call still waits for its method's answer, and not only for its client's window."""
        return any(call.ended and not call.trailers for call in self.streams.values())

    def farewell(self, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
        """Return the last bytes that the server sends: after them, no request is accepted."""
        return frames.goaway(self.last_stream, code)

    # ---- the client's frames

    def accept(self, stream_id: int, fields: Fields) -> _Call | None:
        if stream_id % 2 == 0 or stream_id <= self.last_stream:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if len(self.streams) < _MAX_CALLS:
            return self.open(_Call(stream_id, fields))
        self.last_stream = stream_id
        self.out.append(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
        return None

    def receive_fields(self, stream: _Call, fields: Fields) -> None:
        if stream.ended:
            self._dispatch(stream)

    def receive_data(self, stream: _Call) -> None:
        size = len(stream.content)
        if stream.ended:
            self._dispatch(stream)
        elif size > MAX_MESSAGE + messages.PREFIX_LENGTH:
            self._error(stream, GrpcStatus.RESOURCE_EXHAUSTED, messages.too_large(size, MAX_MESSAGE))
            self.out.append(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))

    # ---- calls

    def _dispatch(self, call: _Call) -> None:
        """Call the method: the request is complete."""
        try:
            result = self._method(dict(call.fields))(_message(call.content))
        except Exception as e:  # noqa: BLE001 -- a bug in a method must not end the connection, which other calls use
            self._answer_error(call, e)
            return
        if isinstance(result, bytes):
            self._answer(call, result)
        else:
            call.content.clear()
            self._later(self, call.id, result)

    def _method(self, fields: Mapping[bytes, bytes]) -> Method:
        path = fields.get(b":path", b"")
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            raise CallError(GrpcStatus.INTERNAL, "no gRPC call: its content-type is not application/grpc")
        if path not in self._methods:
            raise CallError(GrpcStatus.UNIMPLEMENTED, f"no method {path.decode('ascii', 'backslashreplace'):.100}")
        return self._methods[path]

    def _answer(self, call: _Call, message: bytes) -> None:
        self.send_block(call.id, _BEGIN, end_stream=False)
        call.unsent, call.trailers = memoryview(messages.prefixed(message)), _OK
        self.send(call)

    def _answer_error(self, call: _Call | None, error: Exception) -> None:
        """Answer with an error, and report the error of a method even if its caller has given up the call."""
        if not isinstance(error, CallError):
            self._failed(error)
            error = CallError(GrpcStatus.UNKNOWN, "an error in the hook server, see its log")
        if call is not None:
            self._error(call, error.status, error.message)

    def _error(self, call: _Call, status: GrpcStatus, message: str) -> None:
        """Answer a call with trailers only: an error without a message."""
        call.trailers = HeaderLane().render(messages.trailers_only(status, message))
        self.send(call)


def _message(content: bytearray) -> bytes:
    if len(content) < messages.PREFIX_LENGTH:
        raise CallError(GrpcStatus.INVALID_ARGUMENT, "no request")
    _, length = messages.parse_prefix(content)
    if content[0]:
        raise CallError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not taken")
    if len(content) != messages.PREFIX_LENGTH + length:
        raise CallError(GrpcStatus.INVALID_ARGUMENT, "the request is not one whole message")
    return bytes(memoryview(content)[messages.PREFIX_LENGTH :])


class UnaryServer:
    """Hold the listening socket and its connections. `close` ends them: it answers the requests received before, within
    `DRAIN_S`, and accepts no later ones."""

    def __init__(self, methods: MethodsFor, *, listener: Listener, failed: Callable[[Exception], None]) -> None:
        """Create the server. `failed` gets each exception of a method that is not a CallError."""
        self._methods = methods
        self._listener = listener
        self._failed = failed
        self._open: set[ServerConnection] = set()
        self._running: set[asyncio.Task[None]] = set()  # tasks of calls that are not answered yet
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await serve(self._connect, self._listener)

    async def close(self) -> None:
        """Stop accepting requests, and answer the pending ones. May be called twice."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=DRAIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)  # let the connections see that they are closed

    def _connect(self) -> ServerConnection:
        connection = ServerConnection(self._methods, failed=self._failed, later=self._later, closed=self._open.discard)
        self._open.add(connection)
        return connection

    def _later(self, connection: ServerConnection, stream_id: int, work: Later) -> None:
        """Run the coroutine to its end, even if the caller gives up or the connection closes."""
        task = asyncio.get_running_loop().create_task(_finish(connection, stream_id, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _finish(connection: ServerConnection, stream_id: int, work: Later) -> None:
    result: bytes | Exception
    try:
        result = await work
    except asyncio.CancelledError:
        result = CallError(GrpcStatus.UNAVAILABLE, "the hook server is stopping")
    except Exception as e:  # noqa: BLE001 -- a bug in a method must not end the connection, which other calls use
        result = e
    connection.answer_later(stream_id, result)
