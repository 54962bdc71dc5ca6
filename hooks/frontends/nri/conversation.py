"""Run both logical connections of NRI's socket as one state machine: bytes in, calls and replies out.

A call has a name and bytes. A plugin answers on connection 1 and calls on connection 2; a runtime does the opposite (in tests).
An unreadable call has a `problem`: answer it with that error, because a runtime continues without a plugin that closes the
connection. After a MalformedError, close the socket.

All fields of a call are kept, except in the list of pods (Synchronize). In that list, only the pods' ids and namespaces are
kept, because pod authors decide how large annotations and environments are.

Source: containerd/ttrpc, request.proto; a client's streams have odd numbers.

Tests: tests/unit/hooks/frontends/nri/test_wire.py
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from hooks.frontends.nri.sieve import ExcessError, Fields, Inner, MalformedError, Shrink, Sieve
from hooks.frontends.nri.wire import (
    MAX_SENT,
    PLUGIN,
    RUNTIME,
    Arrived,
    MessageKind,
    MessageReader,
    PieceReader,
    TtrpcMessage,
    render_message,
    render_pieces,
)
from lading.http2.messages import MAX_STATUS_MESSAGE, GrpcStatus
from protos.nri.v1alpha1 import nri_pb2 as nri

LIST: Final = "Synchronize"


class NriCallError(Exception):
    """Hold the status and message of a call's error answer, for received and for sent calls."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class NriCall:
    """Hold a received call, which is to be answered."""

    stream: int
    service: str = ""
    method: str = ""
    payload: bytes = b""  # serialized request; for Synchronize only the needed fields
    timeout_s: float = 0.0  # seconds after which the caller gives up; 0: never
    problem: NriCallError | None = None  # why the call cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Hold the other side's answer to a sent call."""

    stream: int
    payload: bytes = b""
    error: NriCallError | None = None


def request_sieve() -> Sieve:
    """Return the sieve of one TtrpcRequest. Senders write fields in numeric order, so the method precedes the payload."""

    def read_method(name: bytes) -> bytes:
        fields[nri.TtrpcRequest.PAYLOAD_FIELD_NUMBER] = Inner(_LISTED) if name == LIST.encode() else _whole
        return name

    fields: dict[int, Shrink | Inner] = {
        nri.TtrpcRequest.SERVICE_FIELD_NUMBER: _whole,
        nri.TtrpcRequest.METHOD_FIELD_NUMBER: read_method,
        nri.TtrpcRequest.PAYLOAD_FIELD_NUMBER: _whole,
        nri.TtrpcRequest.TIMEOUT_NANO_FIELD_NUMBER: _whole,
    }
    return Sieve(fields)


def response_sieve() -> Sieve:
    return Sieve({nri.TtrpcResponse.STATUS_FIELD_NUMBER: _whole, nri.TtrpcResponse.PAYLOAD_FIELD_NUMBER: _whole})


def _whole(value: bytes) -> bytes:
    return value


def _shrink_pod(value: bytes) -> bytes:
    pod = nri.ListedPod.FromString(value)
    pod.DiscardUnknownFields()
    return pod.SerializeToString()


_LISTED: Final[Fields] = {
    nri.SynchronizeRequest.PODS_FIELD_NUMBER: _shrink_pod,
    nri.SynchronizeRequest.MORE_FIELD_NUMBER: _whole,
}


class NriConversation:
    def __init__(self, *, answers_on: int = PLUGIN) -> None:
        self._answers_on = answers_on
        self._calls_on = RUNTIME if answers_on == PLUGIN else PLUGIN
        self._pieces = PieceReader()
        self._messages = {self._answers_on: MessageReader(request_sieve), self._calls_on: MessageReader(response_sieve)}
        self._next = 1

    @property
    def is_idle(self) -> bool:
        """Return whether no part of a call or reply has arrived without its end."""
        return all(reader.is_idle for reader in self._messages.values())

    def receive(self, data: bytes) -> Iterator[NriCall | Reply]:
        """Yield the calls and replies that these bytes complete. Raise MalformedError."""
        for connection, piece in self._pieces.feed(data):
            reader = self._messages.get(connection)
            if reader is None:
                raise MalformedError(f"cannot read connection {connection}: NRI has {PLUGIN} and {RUNTIME}")
            for message in reader.feed(piece):
                yield self._read(connection, message)

    def call(self, service: str, method: str, payload: bytes, *, timeout_s: float = 0.0) -> tuple[int, bytes]:
        """Return the stream number, which the reply will carry, and the bytes to send."""
        stream, self._next = self._next, self._next + 2
        request = nri.TtrpcRequest(service=service, method=method, payload=payload, timeout_nano=int(timeout_s * 1e9))
        return stream, self._render(self._calls_on, TtrpcMessage(stream, MessageKind.REQUEST, request.SerializeToString()))

    def answer(self, call: NriCall, payload: bytes) -> bytes:
        """Return the bytes that answer a call; an error if the answer is larger than ttrpc allows."""
        body = nri.TtrpcResponse(payload=payload).SerializeToString()
        if len(body) > MAX_SENT:
            return self.refuse(call, NriCallError(GrpcStatus.RESOURCE_EXHAUSTED, f"the answer has {len(body)} bytes"))
        return self._render(self._answers_on, TtrpcMessage(call.stream, MessageKind.RESPONSE, body))

    def refuse(self, call: NriCall, error: NriCallError) -> bytes:
        status = nri.TtrpcStatus(code=error.status, message=error.message[:MAX_STATUS_MESSAGE])
        body = nri.TtrpcResponse(status=status).SerializeToString()
        return self._render(self._answers_on, TtrpcMessage(call.stream, MessageKind.RESPONSE, body))

    def _read(self, connection: int, message: Arrived) -> NriCall | Reply:
        expected = MessageKind.REQUEST if connection == self._answers_on else MessageKind.RESPONSE
        if message.kind is not expected:
            raise MalformedError(
                f"cannot read a {message.kind.name} on connection {connection}: only a {expected.name} comes there"
            )
        return _read_call(message) if message.kind is MessageKind.REQUEST else _read_reply(message)

    def _render(self, connection: int, message: TtrpcMessage) -> bytes:
        return render_pieces(connection, render_message(message))


def _read_call(message: Arrived) -> NriCall:
    try:
        request = nri.TtrpcRequest.FromString(message.body.kept())
    except ExcessError as e:
        return NriCall(
            stream=message.stream, problem=NriCallError(GrpcStatus.RESOURCE_EXHAUSTED, f"the message is too large: {e}")
        )
    except (MalformedError, DecodeError):
        return NriCall(stream=message.stream, problem=NriCallError(GrpcStatus.INVALID_ARGUMENT, "the message is no request"))
    return NriCall(
        stream=message.stream,
        service=request.service,
        method=request.method,
        payload=request.payload,
        timeout_s=request.timeout_nano / 1e9,
    )


def _read_reply(message: Arrived) -> Reply:
    try:
        response = nri.TtrpcResponse.FromString(message.body.kept())
    except (MalformedError, DecodeError) as e:
        raise MalformedError(f"cannot read an answer of the runtime: {e}") from e
    if not response.HasField("status") or response.status.code == GrpcStatus.OK:
        return Reply(stream=message.stream, payload=response.payload)
    return Reply(stream=message.stream, error=NriCallError(response.status.code, response.status.message))
