"""Answer gRPC's unary calls on one HTTP/2 connection: takes the client's bytes, calls methods, returns the server's bytes.

A method takes a message and returns the answer, or a coroutine for the answer. The connection's owner runs the coroutine while
other calls are answered. An exception becomes an error for the caller, with the status of a `CallError`. MalformedError ends
the connection after malformed frames or header blocks. Messages over 16 MiB, compressed messages (no compression is announced),
and more than 256 calls at a time are refused.

This server exists because a container waits during the hook call: a general server takes twice as long as the decision.

Source: RFC 9113; gRPC's PROTOCOL-HTTP2.md.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from lading.http2 import frames, messages
from lading.http2.blocks import BlockReader
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane
from lading.http2.messages import GrpcStatus
from lading.http2.sending import Outgoing, Sender

MAX_MESSAGE: Final = 16 << 20  # bytes; kubelet's own limit. A hook request is much smaller than kubelet's CRI request
_MAX_CALLS: Final = 256
_CACHED_BLOCK: Final = 512  # bytes of a cached header block; the proxy sends the same literal headers for most calls
_MAX_CONCURRENT_STREAMS: Final = 0x3  # RFC 9113 6.5.2
_TWO_SETTINGS: Final = Struct(">HLHL")
_BEGIN: Final = HeaderLane().render(messages.REPLY_BEGINS)
_OK: Final = HeaderLane().render(((b"grpc-status", b"0"),))

Later = Coroutine[Any, Any, bytes]
Method = Callable[[bytes], bytes | Later]


class CallError(Exception):
    """Hold the gRPC status and message of an error answer. A method raises it."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class _Call:
    fields: Fields
    reply: Outgoing
    content: bytearray = field(default_factory=bytearray)
    asked: bool = False  # the request has arrived completely
    answered: bool = False  # the method has answered; some of the reply may still wait for the client's window


class Conversation:
    def __init__(
        self,
        methods: Mapping[bytes, Method],
        *,
        failed: Callable[[Exception], None],
        later: Callable[[int, Later], object],
    ) -> None:
        """Set the methods, by path. `failed` gets each exception of a method that is not a CallError. `later` gets the stream
        and the coroutine of a call that is not answered at once: pass the coroutine's result to `answer_later`."""
        self.last_stream = 0
        self._methods = methods
        self._failed = failed
        self._later = later
        self._preface = frames.PREFACE
        self._reader = FrameReader()
        self._blocks = BlockReader(cached_block=_CACHED_BLOCK)
        self._sender = Sender()
        self._calls: dict[int, _Call] = {}
        self._uncredited = 0
        self._out: list[bytes] = []

    def greet(self) -> bytes:
        """Return the first bytes that the server sends. Its flow-control windows hold the largest message, so that no message
        needs a window update on its way."""
        window = MAX_MESSAGE + frames.DEFAULT_MAX_FRAME_SIZE
        settings = _TWO_SETTINGS.pack(_MAX_CONCURRENT_STREAMS, _MAX_CALLS, frames.INITIAL_WINDOW_SIZE, window)
        return frames.frame(frames.SETTINGS, 0, 0, settings) + frames.window_update(0, window)

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send in answer. After a MalformedError, send `farewell` and nothing more."""
        if self._preface:
            self._preface, taken = frames.read_preface(self._preface, data)
            data = data[taken:]
        buffer = self._reader.feed(data)
        for kind, flags, stream, start, end in self._reader.frames(buffer):
            self._frame(buffer, kind, flags, stream, start + frames.HEADER_LENGTH, end)
        if self._uncredited:
            self._out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        return self._taken()

    def answer_later(self, stream: int, result: bytes | Exception) -> bytes:
        """Return the bytes that answer a call whose coroutine has ended; no bytes if the caller has given up the call."""
        call = self._calls.get(stream)
        if isinstance(result, Exception):
            self._answer_error(stream, result, given_up=call is None)
        elif call is not None:
            self._answer(stream, call, result)
        return self._taken()

    @property
    def waiting(self) -> bool:
        """Return whether a call still waits for its method's answer."""
        return any(call.asked and not call.answered for call in self._calls.values())

    def farewell(self, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
        return frames.goaway(self.last_stream, code)

    def _taken(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out

    # ---- frames

    def _frame(self, buffer: bytes, kind: int, flags: int, stream: int, start: int, end: int) -> None:
        self._blocks.meet(kind, stream)
        match kind:
            case frames.DATA:
                self._data(buffer, flags, stream, start, end)
            case frames.HEADERS | frames.CONTINUATION:
                fields = self._blocks.read(buffer, kind, flags, stream, start, end)
                if fields is not None:
                    self._called(stream, fields)
            case frames.RST_STREAM:
                self._calls.pop(stream, None)
            case frames.SETTINGS if not flags & frames.ACK:
                self._out.append(self._sender.announced(buffer[start:end], [call.reply for call in self._calls.values()]))
                self._send_all()
            case frames.PING if not flags & frames.ACK:
                self._out.append(frames.frame(frames.PING, frames.ACK, 0, buffer[start:end]))
            case frames.WINDOW_UPDATE:
                call = self._calls.get(stream)
                self._sender.credited(stream, call.reply if call else None, frames.unsigned(buffer, start))
                self._send_all()
            case frames.PUSH_PROMISE:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE by a client")

    def _data(self, buffer: bytes, flags: int, stream: int, start: int, end: int) -> None:
        self._uncredited += end - start
        call = self._calls.get(stream)
        if call is None or call.asked:
            if stream == 0 or stream > self.last_stream:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "DATA of no call")
            return  # the stream is closed
        start, end = frames.unpadded(buffer, flags, start, end)
        call.content += memoryview(buffer)[start:end]
        if flags & frames.END_STREAM:
            self._ask(stream, call)
        elif len(call.content) > MAX_MESSAGE + messages.PREFIX_LENGTH:
            self._error(stream, GrpcStatus.RESOURCE_EXHAUSTED, messages.too_large(len(call.content), MAX_MESSAGE))
            self._out.append(frames.rst_stream(stream, ErrorCode.NO_ERROR))

    def _called(self, stream: int, fields: Fields) -> None:
        call = self._calls.get(stream)
        if call is None:
            if stream % 2 == 0 or stream <= self.last_stream:
                raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream}")
            self.last_stream = stream
            if len(self._calls) >= _MAX_CALLS:
                self._out.append(frames.rst_stream(stream, ErrorCode.REFUSED_STREAM))
                return
            call = self._calls[stream] = _Call(fields, self._sender.opened(stream))
        if self._blocks.ends_stream and not call.asked:
            self._ask(stream, call)

    # ---- calls

    def _ask(self, stream: int, call: _Call) -> None:
        """Call the method: the request is complete."""
        call.asked = True
        try:
            result = self._method(dict(call.fields))(self._message(call.content))
        except Exception as e:  # noqa: BLE001  a bug in a method must not end the connection, on which others are answered
            self._answer_error(stream, e)
            return
        if isinstance(result, bytes):
            self._answer(stream, call, result)
        else:
            call.content.clear()
            self._later(stream, result)

    def _answer(self, stream: int, call: _Call, message: bytes) -> None:
        call.answered = True
        call.reply.left = memoryview(messages.prefixed(message))
        self._out.append(self._sender.headers(stream, _BEGIN, end_stream=False))
        self._send(call)

    def _answer_error(self, stream: int, error: Exception, *, given_up: bool = False) -> None:
        if not isinstance(error, CallError):
            self._failed(error)
            error = CallError(GrpcStatus.UNKNOWN, "an error in the hook server, see its log")
        if not given_up:
            self._error(stream, error.status, error.message)

    def _method(self, fields: Mapping[bytes, bytes]) -> Method:
        path = fields.get(b":path", b"")
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            raise CallError(GrpcStatus.INTERNAL, "no gRPC call: its content-type is not application/grpc")
        if path not in self._methods:
            raise CallError(GrpcStatus.UNIMPLEMENTED, f"no method {path.decode('ascii', 'backslashreplace'):.100}")
        return self._methods[path]

    def _message(self, content: bytearray) -> bytes:
        if len(content) < messages.PREFIX_LENGTH:
            raise CallError(GrpcStatus.INVALID_ARGUMENT, "no request")
        _, length = messages.parse_prefix(content)
        if content[0]:
            raise CallError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not taken")
        if len(content) != messages.PREFIX_LENGTH + length:
            raise CallError(GrpcStatus.INVALID_ARGUMENT, "the request is not one whole message")
        return bytes(memoryview(content)[messages.PREFIX_LENGTH :])

    def _error(self, stream: int, status: GrpcStatus, message: str) -> None:
        """Answer a call with trailers only: an error without a message."""
        self._calls.pop(stream, None)
        block = HeaderLane().render(messages.trailers_only(status, message))
        self._out.append(self._sender.headers(stream, block, end_stream=True))

    def _send_all(self) -> None:
        for call in [call for call in self._calls.values() if call.answered]:
            self._send(call)

    def _send(self, call: _Call) -> None:
        """Send as much of the reply as the client's window allows; then the trailers."""
        reply = call.reply
        self._out += self._sender.data(reply, end_stream=False)
        if not reply.left:
            self._out.append(self._sender.headers(reply.stream, _OK, end_stream=True))
            del self._calls[reply.stream]
