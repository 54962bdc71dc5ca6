"""The hook API (`lading.hook.v1.Hook`) over a Unix socket: one request in, one decision out.

`wire` speaks gRPC on each connection; here are its methods and the connections. Requests that need no waiting are answered at
once; a container whose VFs have to be attached, and a sandbox that may have VFs to give back, are answered by tasks of their
own. The listening socket is systemd's, or one that drops untrusted peers (lading.sockets).
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, cast

from google.protobuf.message import DecodeError

from hooks.frontends.cri_hook.wire import CallError, Conversation, Later, Method
from hooks.grant.decide import Answer
from hooks.model.assignment import Refusal
from hooks.node.node import Node
from lading.http2.frames import MalformedError
from lading.http2.messages import Status
from lading.log import Event, Log
from lading.reasons import Reason
from lading.sockets import Listener, Peer, peer_credentials
from lading.tracing import OFF, Span, Tracing
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Hook"
# Bytes that wait for a client that does not read; then it is not read either.
_HIGH_WATER: Final = 1 << 20
# At the end, for answers that are under way; systemd waits for 30 s.
DRAIN_S: Final = 5.0

_STAGES: Final = {number: name for name, number in hook_pb2.Stage.items()}
_NOTHING: Final = hook_pb2.AdjustResponse(adjustment=hook_pb2.Adjustment())


class HookService:
    def __init__(
        self, node: Node, *, answered: Callable[[Answer | Refusal, float], object] = lambda *_: None, tracing: Tracing = OFF
    ) -> None:
        """Set the dependencies. `answered` is called for each container after its answer, with the seconds that deciding and
        recording took."""
        self._node = node
        self._answered = answered
        self._tracing = tracing

    def methods(self) -> Mapping[bytes, Method]:
        """Return the methods by path: bytes in, bytes out."""
        return {f"/{SERVICE}/Adjust".encode(): self._adjust, f"/{SERVICE}/Observe".encode(): self._observe}

    def _adjust(self, message: bytes) -> bytes | Later:
        try:
            request = hook_pb2.AdjustRequest.FromString(message)
        except DecodeError as e:
            raise CallError(Status.INVALID_ARGUMENT, "the message is no AdjustRequest") from e
        response = self.adjust(request)
        if isinstance(response, hook_pb2.AdjustResponse):
            return response.SerializeToString()
        return _serialized(response)

    def _observe(self, message: bytes) -> bytes:
        try:
            request = hook_pb2.ObserveRequest.FromString(message)
        except DecodeError as e:
            raise CallError(Status.INVALID_ARGUMENT, "the message is no ObserveRequest") from e
        self.observe(request)
        return b""

    def adjust(self, request: hook_pb2.AdjustRequest) -> hook_pb2.AdjustResponse | Coroutine[Any, Any, hook_pb2.AdjustResponse]:
        stage = _STAGES.get(request.stage, f"unknown stage {request.stage}")
        span = self._tracing.begin(f"Adjust {stage}", parent=request.traceparent)
        try:
            response = self._adjusted(request)
        except BaseException:
            span.end()
            raise
        if isinstance(response, hook_pb2.AdjustResponse):
            with span:
                _note_answer(span, request, response)
            return response
        return _traced(span, request, response)

    def _adjusted(
        self, request: hook_pb2.AdjustRequest
    ) -> hook_pb2.AdjustResponse | Coroutine[Any, Any, hook_pb2.AdjustResponse]:
        match request.stage:
            case hook_pb2.CREATE_CONTAINER:
                began = time.monotonic()
                answer = self._node.adjust_container(request.sandbox, request.container)
                if isinstance(answer, Refusal) and answer.transient:
                    return self._adjust_after_reading(request, began)
                return self._finish(request.sandbox, answer, time.monotonic() - began)
            case hook_pb2.STOP_POD_SANDBOX:
                self._node.stopping(request.sandbox)
                return self._give_back(request.sandbox) if self._node.has_vfs(request.sandbox) else _NOTHING
            case _:
                return _NOTHING  # Lading does nothing at the other stages

    def _finish(
        self, sandbox: hook_pb2.PodSandbox, answer: Answer | Refusal, took_s: float
    ) -> hook_pb2.AdjustResponse | Coroutine[Any, Any, hook_pb2.AdjustResponse]:
        if isinstance(answer, Answer) and answer.attach:
            return self._attach(sandbox, answer, took_s)
        return self._respond(answer, took_s)

    async def _adjust_after_reading(self, request: hook_pb2.AdjustRequest, began: float) -> hook_pb2.AdjustResponse:
        answer = await self._node.adjust_after_reading(request.sandbox, request.container)
        finished = self._finish(request.sandbox, answer, time.monotonic() - began)
        return finished if isinstance(finished, hook_pb2.AdjustResponse) else await finished

    async def _attach(self, sandbox: hook_pb2.PodSandbox, answer: Answer, took_s: float) -> hook_pb2.AdjustResponse:
        return self._respond(await self._node.attach_vfs(sandbox, answer), took_s)

    async def _give_back(self, sandbox: hook_pb2.PodSandbox) -> hook_pb2.AdjustResponse:
        await self._node.give_back_vfs(sandbox)
        return _NOTHING

    def _respond(self, answer: Answer | Refusal, took_s: float) -> hook_pb2.AdjustResponse:
        self._answered(answer, took_s)
        if isinstance(answer, Refusal):
            return hook_pb2.AdjustResponse(refusal=hook_pb2.Refusal(reason=answer.reason, message=answer.message))
        return hook_pb2.AdjustResponse(adjustment=answer.adjustment)

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


async def _traced(
    span: Span, request: hook_pb2.AdjustRequest, later: Coroutine[Any, Any, hook_pb2.AdjustResponse]
) -> hook_pb2.AdjustResponse:
    with span:
        response = await later
        _note_answer(span, request, response)
        return response


def _note_answer(span: Span, request: hook_pb2.AdjustRequest, response: hook_pb2.AdjustResponse) -> None:
    sandbox = request.sandbox
    span.note(
        k8s_namespace_name=sandbox.namespace,
        k8s_pod_name=sandbox.name,
        k8s_pod_uid=sandbox.uid,
        k8s_container_name=request.container.name,
        lading_reason=response.refusal.reason,
    )


async def _serialized(later: Coroutine[Any, Any, hook_pb2.AdjustResponse]) -> bytes:
    return (await later).SerializeToString()


class PeerService(Protocol):
    """A service whose methods get the process that connected."""

    def methods(self, peer: Callable[[], Peer]) -> Mapping[bytes, Method]: ...


class HookServer:
    """The connections. `close` ends them: requests received before it are answered, even if that takes a little longer; later
    requests are not accepted."""

    def __init__(self, service: HookService, log: Log, *others: PeerService) -> None:
        """Set the dependencies. `others` are served on the same socket."""
        self._methods = service.methods()
        self._others = others
        self._log = log
        self._open: set[_Connection] = set()
        self._running: set[asyncio.Task[None]] = set()  # calls that are answered later
        self._server: asyncio.Server | None = None

    async def start(self, listener: Listener) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(self._methods_for, self._open, self._running, failed=self._failed), sock=listener
        )

    async def close(self) -> None:
        """Close the server. May be called twice."""
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

    def _methods_for(self, peer: Callable[[], Peer]) -> Mapping[bytes, Method]:
        methods = dict(self._methods)
        for service in self._others:
            methods.update(service.methods(peer))
        return methods

    def _failed(self, error: Exception) -> None:
        """Log the type and place of an error, not its text, which may quote a pod's values."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"
        self._log.error(Event.GRANT_REFUSED, f"internal error: {where}", reason=Reason.INTERNAL)


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        methods: Callable[[Callable[[], Peer]], Mapping[bytes, Method]],
        others: "set[_Connection]",
        running: set[asyncio.Task[None]],
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._conversation = Conversation(methods(self._peer), failed=failed, later=self._later)
        self._others = others
        self._running = running
        self._transport: asyncio.Transport | None = None
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport.write(self._conversation.greet())
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._closing:
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
        """Close the connection at once, or after the last answer."""
        if self._transport is None or self._transport.is_closing() or self._closing:
            return
        self._closing = True
        self._transport.write(self._conversation.farewell())
        self._close_answered()

    def _peer(self) -> Peer:
        assert self._transport is not None  # noqa: S101  a call came by it
        return peer_credentials(self._transport.get_extra_info("socket"))

    def _later(self, stream: int, work: Later) -> None:
        """Run the coroutine to its end, also if the caller or the connection is gone."""
        task = asyncio.get_running_loop().create_task(self._answer(stream, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, stream: int, work: Later) -> None:
        result: bytes | Exception
        try:
            result = await work
        except asyncio.CancelledError:
            result = CallError(Status.UNAVAILABLE, "the hook server is stopping")
        except Exception as e:  # noqa: BLE001  as of a method that answers at once
            result = e
        answer = self._conversation.answer_later(stream, result)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)
            if self._closing:
                self._close_answered()

    def _close_answered(self) -> None:
        if self._transport is not None and not self._conversation.waiting:
            self._transport.close()
