"""The hook API (`lading.hook.v1.Hook`) over a Unix socket: one request in, one decision out.

`wire` speaks gRPC on each connection; here are its methods and the connections. The listening socket is systemd's, or one made
with care, which drops peers that are not trusted (lading.sockets).
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Final, cast

from google.protobuf.message import DecodeError

from hooks.assignment.model import Refusal
from hooks.decide import Answer
from hooks.node import Node
from hooks.wire import CallError, Conversation, Method
from lading.http2.frames import MalformedError
from lading.http2.messages import Status
from lading.log import Event, Log
from lading.reasons import Reason
from lading.sockets import Listener
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Hook"
# Bytes that wait for a client that does not read; then it is not read either.
_HIGH_WATER: Final = 1 << 20


class HookService:
    def __init__(self, node: Node, *, answered: Callable[[Answer | Refusal, float], object] = lambda *_: None) -> None:
        """`answered` is told of each container that was asked about, with the seconds that it took."""
        self._node = node
        self._answered = answered

    def methods(self) -> Mapping[bytes, Method]:
        """By path: bytes in, bytes out."""
        return {f"/{SERVICE}/Adjust".encode(): self._adjust, f"/{SERVICE}/Observe".encode(): self._observe}

    def _adjust(self, message: bytes) -> bytes:
        try:
            request = hook_pb2.AdjustRequest.FromString(message)
        except DecodeError as e:
            raise CallError(Status.INVALID_ARGUMENT, "the message is no AdjustRequest") from e
        return self.adjust(request).SerializeToString()

    def _observe(self, message: bytes) -> bytes:
        try:
            request = hook_pb2.ObserveRequest.FromString(message)
        except DecodeError as e:
            raise CallError(Status.INVALID_ARGUMENT, "the message is no ObserveRequest") from e
        self.observe(request)
        return b""

    def adjust(self, request: hook_pb2.AdjustRequest) -> hook_pb2.AdjustResponse:
        match request.stage:
            case hook_pb2.CREATE_CONTAINER:
                began = time.monotonic()
                answer = self._node.adjust_container(request.sandbox, request.container)
                self._answered(answer, time.monotonic() - began)
                if isinstance(answer, Refusal):
                    return hook_pb2.AdjustResponse(refusal=hook_pb2.Refusal(reason=answer.reason, message=answer.message))
                return hook_pb2.AdjustResponse(adjustment=answer.adjustment)
            case hook_pb2.STOP_POD_SANDBOX:
                self._node.stopping(request.sandbox)
            case _:
                pass  # nothing of ours depends on the other stages
        return hook_pb2.AdjustResponse(adjustment=hook_pb2.Adjustment())

    def observe(self, request: hook_pb2.ObserveRequest) -> None:
        if request.grpc_status != Status.OK:
            return
        match request.stage:
            case hook_pb2.CREATE_CONTAINER:
                self._node.container_created(request.sandbox, request.container)
            case hook_pb2.REMOVE_CONTAINER:
                self._node.container_removed(request.container)
            case hook_pb2.STOP_POD_SANDBOX:
                self._node.stopped(request.sandbox)
            case hook_pb2.REMOVE_POD_SANDBOX:
                self._node.sandbox_removed(request.sandbox)
            case _:
                pass


class HookServer:
    """The connections. `close` ends them: what was asked is answered already, and what is asked after is not taken."""

    def __init__(self, service: HookService, log: Log) -> None:
        self._methods = service.methods()
        self._log = log
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: Listener) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(Conversation(self._methods, failed=self._failed), self._open), sock=listener
        )

    async def close(self) -> None:
        """May be called twice."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()
        await asyncio.sleep(0)  # they hear that they are gone

    def _failed(self, error: Exception) -> None:
        """Type and place, not its text, which may quote what a pod says."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"
        self._log.error(Event.GRANT_REFUSED, f"an error of ours: {where}", reason=Reason.INTERNAL)


class _Connection(asyncio.Protocol):
    def __init__(self, conversation: Conversation, others: "set[_Connection]") -> None:
        self._conversation = conversation
        self._others = others
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport.write(self._conversation.greet())
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            answer = self._conversation.receive(data)
        except MalformedError as e:
            self._transport.write(self._conversation.farewell(e.code))
            self._transport.close()
            return
        if answer:
            self._transport.write(answer)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._conversation.farewell())
            self._transport.close()
