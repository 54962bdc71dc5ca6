"""gRPC's unary calls as their server speaks them, on one HTTP/2 connection: bytes in; bytes out, and methods called in between.

Enters: bytes as the client sent them. Leaves: bytes for it. A method takes a message and answers one, at once; what it raises
is an error for its caller, with the status of a `CallError`. Refuses: frames and header blocks that are none (MalformedError
ends the connection), messages over 16 MiB, compressed ones (none is announced), more than 256 calls at a time.

Written because a container waits while its hook is asked: grpclib and h2 take twice as long for a question as the decision.
Nothing that is sent is put into the client's header table: its size is set to zero by the first block, once for good.

Source: RFC 9113; RFC 7541; gRPC's PROTOCOL-HTTP2.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

import hpack

MAX_MESSAGE: Final = 16 << 20  # what kubelet takes; a projection is much smaller than its request
_MAX_CALLS: Final = 256
_MAX_FIELDS: Final = 64 << 10  # of one block, unpacked; packed it has at most as much
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME: Final = 16_384
_WINDOW: Final = 65_535
_LARGEST_WINDOW: Final = (1 << 31) - 1
_CACHED_BLOCKS: Final = 64
_CACHED_BLOCK: Final = 512  # bytes

_MAX_CONCURRENT_STREAMS: Final = 3
_INITIAL_WINDOW_SIZE: Final = 4
_MAX_FRAME_SIZE: Final = 5


class _Kind:
    """Of a frame; plain integers, because they are compared for every one."""

    DATA: Final = 0
    HEADERS: Final = 1
    RST_STREAM: Final = 3
    SETTINGS: Final = 4
    PUSH_PROMISE: Final = 5
    PING: Final = 6
    GOAWAY: Final = 7
    WINDOW_UPDATE: Final = 8
    CONTINUATION: Final = 9


class _Flag:
    END_STREAM: Final = 0x1
    ACK: Final = 0x1
    END_HEADERS: Final = 0x4
    PADDED: Final = 0x8
    PRIORITY: Final = 0x20


_FIXED_LENGTH: Final = {_Kind.RST_STREAM: 4, _Kind.PING: 8, _Kind.WINDOW_UPDATE: 4}
_HEAD: Final = Struct(">HBBBL")  # length in two parts, type, flags, stream
_SETTING: Final = Struct(">HL")
_PREFIX: Final = Struct(">BL")  # of a gRPC message: compressed, length

_TABLE_SIZE_0: Final = b"\x20"  # RFC 7541 6.3
_OK_BLOCK: Final = b"\x88\x0f\x10\x10application/grpc"  # :status 200, content-type
_OK_TRAILERS: Final = b"\x00\x0bgrpc-status\x010"

Method = Callable[[bytes], bytes]


class Code(IntEnum):
    """google.rpc.Code, those that are answered here."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class CallError(Exception):
    """What a method raises to answer a status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class MalformedError(Exception):
    """The connection can not go on; `code` is for its GOAWAY."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class _Call:
    fields: Mapping[bytes, bytes]
    room: int  # bytes of DATA that the client takes
    content: bytearray = field(default_factory=bytearray)
    reply: memoryview | None = None  # what is still to be sent of it


class Conversation:
    def __init__(self, methods: Mapping[bytes, Method], *, failed: Callable[[Exception], None]) -> None:
        """`methods` by path; `failed` is told of what a method raised that is no CallError."""
        self.last_stream = 0
        self._methods = methods
        self._failed = failed
        self._preface = _PREFACE
        self._rest = b""
        self._decoder = hpack.Decoder(max_header_list_size=_MAX_FIELDS)
        self._known: dict[bytes, Mapping[bytes, bytes]] = {}  # blocks that moved no table, since it moved last
        self._block: bytearray | None = None  # of HEADERS that are not whole
        self._block_stream, self._block_ends_stream = 0, False
        self._calls: dict[int, _Call] = {}
        self._initial_room = self._room_in_all = _WINDOW
        self._max_frame = _FRAME
        self._uncredited = 0
        self._out: list[bytes] = []
        self._first_block = _TABLE_SIZE_0

    def greet(self) -> bytes:
        """What a server says first. Windows as large as a message may be, so that they are not updated while it comes."""
        window = MAX_MESSAGE + _FRAME
        settings = _SETTING.pack(_MAX_CONCURRENT_STREAMS, _MAX_CALLS) + _SETTING.pack(_INITIAL_WINDOW_SIZE, window)
        return _frame(_Kind.SETTINGS, 0, 0, settings) + _frame(_Kind.WINDOW_UPDATE, 0, 0, window.to_bytes(4, "big"))

    def receive(self, data: bytes) -> bytes:
        if self._preface:
            given = data[: len(self._preface)]
            if not self._preface.startswith(given):
                raise MalformedError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 client preface")
            self._preface, data = self._preface[len(given) :], data[len(given) :]
        buffer = self._rest + data
        position, size = 0, len(buffer)
        while size - position >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, position)
            length = high << 8 | low
            if length > _FRAME or _FIXED_LENGTH.get(kind, length) != length:
                raise MalformedError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} with {length} bytes")
            start = position + _HEAD.size
            if start + length > size:
                break
            position = start + length
            self._frame(kind, flags, stream & 0x7FFF_FFFF, buffer[start:position])
        self._rest = buffer[position:]
        if self._uncredited:
            self._out.append(_frame(_Kind.WINDOW_UPDATE, 0, 0, self._uncredited.to_bytes(4, "big")))
            self._uncredited = 0
        out, self._out = b"".join(self._out), []
        return out

    def farewell(self, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
        return _frame(_Kind.GOAWAY, 0, 0, self.last_stream.to_bytes(4, "big") + code.to_bytes(4, "big"))

    # ---- frames

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != _Kind.CONTINUATION or stream != self._block_stream):
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        match kind:
            case _Kind.DATA:
                self._data(flags, stream, payload)
            case _Kind.HEADERS:
                self._block, self._block_stream = bytearray(), stream
                self._block_ends_stream = bool(flags & _Flag.END_STREAM)
                payload = _unpadded(flags, payload)
                self._fragment(flags, payload[5:] if flags & _Flag.PRIORITY else payload)
            case _Kind.RST_STREAM:
                self._calls.pop(stream, None)
            case _Kind.SETTINGS if not flags & _Flag.ACK:
                self._settings(payload)
            case _Kind.PING if not flags & _Flag.ACK:
                self._out.append(_frame(_Kind.PING, _Flag.ACK, 0, payload))
            case _Kind.WINDOW_UPDATE:
                self._credit(stream, int.from_bytes(payload, "big") & 0x7FFF_FFFF)
            case _Kind.CONTINUATION if self._block is not None:
                self._fragment(flags, payload)
            case _Kind.PUSH_PROMISE | _Kind.CONTINUATION:
                raise MalformedError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} that nothing calls for")

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._uncredited += len(payload)
        call = self._calls.get(stream)
        if call is None or call.reply is not None:
            if stream == 0 or stream > self.last_stream:
                raise MalformedError(ErrorCode.PROTOCOL_ERROR, "DATA of no call")
            return  # of one that is over
        call.content += _unpadded(flags, payload)
        if flags & _Flag.END_STREAM:
            self._answer(stream, call)
        elif len(call.content) > MAX_MESSAGE + _PREFIX.size:
            self._error(stream, Code.RESOURCE_EXHAUSTED, f"a message over {MAX_MESSAGE} bytes")
            self._out.append(_frame(_Kind.RST_STREAM, 0, stream, ErrorCode.NO_ERROR.to_bytes(4, "big")))

    def _fragment(self, flags: int, fragment: bytes) -> None:
        block = self._block if self._block is not None else bytearray()
        block += fragment
        if len(block) > _MAX_FIELDS:
            raise MalformedError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {_MAX_FIELDS} bytes")
        if not flags & _Flag.END_HEADERS:
            return
        self._block = None
        self._called(self._block_stream, self._decode(bytes(block)))

    def _decode(self, block: bytes) -> Mapping[bytes, bytes]:
        if (known := self._known.get(block)) is not None:
            return known
        table = self._decoder.header_table
        before = _shape(table)
        try:
            fields = dict(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as e:
            raise MalformedError(ErrorCode.ENHANCE_YOUR_CALM, f"header list over {_MAX_FIELDS} bytes") from e
        except (hpack.HPACKError, UnicodeDecodeError) as e:
            raise MalformedError(ErrorCode.COMPRESSION_ERROR, f"header block: {e!r}") from e
        if _shape(table) != before:
            self._known.clear()
        elif len(block) <= _CACHED_BLOCK and len(self._known) < _CACHED_BLOCKS:
            self._known[block] = fields
        return fields

    def _called(self, stream: int, fields: Mapping[bytes, bytes]) -> None:
        call = self._calls.get(stream)
        if call is None:
            if stream % 2 == 0 or stream <= self.last_stream:
                raise MalformedError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream}")
            self.last_stream = stream
            if len(self._calls) >= _MAX_CALLS:
                self._out.append(_frame(_Kind.RST_STREAM, 0, stream, ErrorCode.REFUSED_STREAM.to_bytes(4, "big")))
                return
            call = self._calls[stream] = _Call(fields, self._initial_room)
        if self._block_ends_stream and call.reply is None:
            self._answer(stream, call)

    def _settings(self, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise MalformedError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        settings = dict(_SETTING.iter_unpack(payload))
        room = settings.get(_INITIAL_WINDOW_SIZE, self._initial_room)
        if room > _LARGEST_WINDOW:
            raise MalformedError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {room}")
        for call in self._calls.values():
            call.room += room - self._initial_room
        self._initial_room = room
        self._max_frame = max(_FRAME, min(settings.get(_MAX_FRAME_SIZE, self._max_frame), 1 << 20))
        self._out.append(_frame(_Kind.SETTINGS, _Flag.ACK, 0, b""))
        self._send_all()

    def _credit(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._room_in_all += increment
            if increment == 0 or self._room_in_all > _LARGEST_WINDOW:
                raise MalformedError(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE of {increment}")
        elif call := self._calls.get(stream):
            call.room += increment
        self._send_all()

    # ---- calls

    def _answer(self, stream: int, call: _Call) -> None:
        """The request is whole."""
        try:
            message = self._method(call)(self._message(call.content))
        except CallError as e:
            self._error(stream, e.code, e.message)
        except Exception as e:  # noqa: BLE001  a bug in a method must not end the connection, on which others are answered
            self._failed(e)
            self._error(stream, Code.UNKNOWN, "an error in the hook server, see its log")
        else:
            call.reply = memoryview(_PREFIX.pack(0, len(message)) + message)
            self._out.append(_frame(_Kind.HEADERS, _Flag.END_HEADERS, stream, self._first_block + _OK_BLOCK))
            self._first_block = b""
            self._send(stream, call)

    def _method(self, call: _Call) -> Method:
        path, content_type = call.fields.get(b":path", b""), call.fields.get(b"content-type", b"")
        if not content_type.startswith(b"application/grpc"):
            raise CallError(Code.INTERNAL, "no gRPC call: its content-type is not application/grpc")
        if path not in self._methods:
            raise CallError(Code.UNIMPLEMENTED, f"no method {path.decode('ascii', 'backslashreplace'):.100}")
        return self._methods[path]

    def _message(self, content: bytearray) -> bytes:
        if len(content) < _PREFIX.size:
            raise CallError(Code.INVALID_ARGUMENT, "no request")
        compressed, length = _PREFIX.unpack_from(content)
        if compressed:
            raise CallError(Code.UNIMPLEMENTED, "compressed messages are not taken")
        if len(content) != _PREFIX.size + length:
            raise CallError(Code.INVALID_ARGUMENT, "the request is not one whole message")
        return bytes(memoryview(content)[_PREFIX.size :])

    def _error(self, stream: int, code: Code, message: str) -> None:
        """An answer that is an error and nothing else: trailers only."""
        self._calls.pop(stream, None)
        text = b"".join(b"%c" % b if 0x20 <= b <= 0x7E and b != 0x25 else b"%%%02X" % b for b in message.encode()[:200])
        status = str(int(code)).encode()
        block = self._first_block + _OK_BLOCK + _literal(b"grpc-status", status) + _literal(b"grpc-message", text)
        self._first_block = b""
        self._out.append(_frame(_Kind.HEADERS, _Flag.END_HEADERS | _Flag.END_STREAM, stream, block))

    def _send_all(self) -> None:
        for stream, call in list(self._calls.items()):
            if call.reply is not None:
                self._send(stream, call)

    def _send(self, stream: int, call: _Call) -> None:
        """As much of the reply as the client has room for; then the trailers."""
        while call.reply:
            size = min(len(call.reply), call.room, self._room_in_all, self._max_frame)
            if size <= 0:
                return
            part, call.reply = bytes(call.reply[:size]), call.reply[size:]
            call.room -= size
            self._room_in_all -= size
            self._out.append(_frame(_Kind.DATA, 0, stream, part))
        self._out.append(_frame(_Kind.HEADERS, _Flag.END_HEADERS | _Flag.END_STREAM, stream, _OK_TRAILERS))
        del self._calls[stream]


def _shape(table: hpack.table.HeaderTable) -> tuple[int, int, int]:
    """Differs after a block that moved the table: an entry comes in at the front."""
    entries = table.dynamic_entries
    return len(entries), id(entries[0]) if entries else 0, table.maxsize


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _Flag.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise MalformedError(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _literal(name: bytes, value: bytes) -> bytes:
    """Without indexing (RFC 7541 6.2.2)."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    """RFC 7541 5.1, with a prefix of seven bits; texts here are shorter than 127 + 128 * 128 bytes."""
    if len(text) < 127:
        return bytes((len(text),))
    rest = len(text) - 127
    return bytes((127, rest)) if rest < 128 else bytes((127, rest & 127 | 128, rest >> 7))
