"""Serve the hook API (`lading.hook.v1.Hook`) over a Unix socket: one request in, one decision out.

`wire` speaks gRPC on each connection; this module has the gRPC methods and the connections. A request that needs no waiting is
answered at once. Attaching a container's VFs, or giving a sandbox's VFs back, takes time: a separate task answers such a
request. The listening socket is systemd's, or one that drops untrusted peers (lading.sockets).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, cast

from google.protobuf.message import DecodeError

from hooks.frontends.cri_hook.messages import Result, read_container, read_sandbox, render_result
from hooks.frontends.cri_hook.wire import CallError, Conversation, Later, Method
from hooks.model.assignment import Refusal
from hooks.model.container import Sandbox
from hooks.ports import NodePort
from lading.errors import place_of
from lading.http2.frames import MalformedFrameError
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.sockets import Listener, Peer, peer_credentials, serve
from lading.tracing import OFF, Span, Tracing
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Hook"
# Maximum bytes buffered for a client that does not read. Above it, the server does not read that client's requests either.
_HIGH_WATER: Final = 1 << 20
# Seconds that `close` waits for pending answers; systemd kills the daemon after 30 s.
DRAIN_S: Final = 5.0

_STAGES: Final = {number: name for name, number in hook_pb2.Stage.items()}


class HookService:
    def __init__(self, node: NodePort, *, tracing: Tracing = OFF) -> None:
        self._node = node
        self._tracing = tracing

    def methods(self) -> Mapping[bytes, Method]:
        """Return the methods by path: bytes in, bytes out."""
        return {f"/{SERVICE}/Adjust".encode(): self._adjust, f"/{SERVICE}/Observe".encode(): self._observe}

    def _adjust(self, message: bytes) -> bytes | Later:
        try:
            request = hook_pb2.AdjustRequest.FromString(message)
        except DecodeError as e:
            raise CallError(GrpcStatus.INVALID_ARGUMENT, "the message is no AdjustRequest") from e
        span = self._tracing.begin(
            f"Adjust {_STAGES.get(request.stage, f'unknown stage {request.stage}')}", parent=request.traceparent
        )
        try:
            result = self._result(request)
        except BaseException:
            span.end()
            raise
        if isinstance(result, Awaitable):
            return _later(span, request, result)
        with span:
            return _render(span, request, result)

    def _result(self, request: hook_pb2.AdjustRequest) -> Result | Awaitable[Result]:
        match request.stage:
            case hook_pb2.CREATE_CONTAINER:
                return self._node.adjust_container(read_sandbox(request.sandbox), read_container(request.container))
            case hook_pb2.STOP_POD_SANDBOX:
                return self._node.stopping(read_sandbox(request.sandbox))
            case _:
                return None  # Lading does nothing at the other stages

    def _observe(self, message: bytes) -> bytes:
        try:
            request = hook_pb2.ObserveRequest.FromString(message)
        except DecodeError as e:
            raise CallError(GrpcStatus.INVALID_ARGUMENT, "the message is no ObserveRequest") from e
        if request.grpc_status == GrpcStatus.OK:
            self._observed(request)
        return b""

    def _observed(self, request: hook_pb2.ObserveRequest) -> None:
        sandbox = Sandbox(id=request.sandbox.id, uid=request.sandbox.uid)
        match request.stage:
            case hook_pb2.STOP_POD_SANDBOX:
                self._node.stopped(sandbox)
            case hook_pb2.REMOVE_POD_SANDBOX:
                self._node.sandbox_removed(sandbox)
            case _:
                pass


async def _later(span: Span, request: hook_pb2.AdjustRequest, later: Awaitable[Result]) -> bytes:
    with span:
        return _render(span, request, await later)


def _render(span: Span, request: hook_pb2.AdjustRequest, result: Result) -> bytes:
    sandbox = request.sandbox
    span.note(
        k8s_namespace_name=sandbox.namespace,
        k8s_pod_name=sandbox.name,
        k8s_pod_uid=sandbox.uid,
        k8s_container_name=request.container.name,
        lading_reason=result.reason if isinstance(result, Refusal) else "",
    )
    return render_result(result).SerializeToString()


class ClosedService:
    """Refuse every hook call on a node whose front end is NRI, with a message for the proxy that runs there nevertheless."""

    def methods(self) -> Mapping[bytes, Method]:
        return {f"/{SERVICE}/Adjust".encode(): self._refuse, f"/{SERVICE}/Observe".encode(): self._refuse}

    def _refuse(self, _: bytes) -> bytes:
        raise CallError(
            GrpcStatus.FAILED_PRECONDITION,
            "containers of this node get devices by NRI (front_end = nri); have kubelet use the runtime's own socket",
        )


class Service(Protocol):
    def methods(self) -> Mapping[bytes, Method]: ...


class PeerService(Protocol):
    """Represent a service whose methods need to know the connected process."""

    def methods(self, peer: Callable[[], Peer]) -> Mapping[bytes, Method]: ...


class HookServer:
    """Hold the listening socket and its connections. `close` ends them: it answers the requests received before, within
    `DRAIN_S`, and accepts no later ones."""

    def __init__(self, service: Service, log: Log, *others: PeerService, listener: Listener) -> None:
        """Create the server. It serves `others` on the same socket as `service`."""
        self._listener = listener
        self._methods = service.methods()
        self._others = others
        self._log = log
        self._open: set[_Connection] = set()
        self._running: set[asyncio.Task[None]] = set()  # tasks of calls that are not answered yet
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await serve(
            lambda: _Connection(self._methods_for, self._open, self._running, failed=self._failed), self._listener
        )

    def conditions(self) -> Mapping[str, str]:
        """Return no conditions: the daemon itself checks the socket (`missing_socket`)."""
        return {}

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

    def _methods_for(self, peer: Callable[[], Peer]) -> Mapping[bytes, Method]:
        methods = dict(self._methods)
        for service in self._others:
            methods.update(service.methods(peer))
        return methods

    def _failed(self, error: Exception) -> None:
        self._log.error(Event.GRANT_REFUSED, f"internal error: {place_of(error)}", reason=Reason.INTERNAL)


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
        except MalformedFrameError as e:
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
        """Run the coroutine to its end, even if the caller gives up or the connection closes."""
        task = asyncio.get_running_loop().create_task(self._answer(stream, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, stream: int, work: Later) -> None:
        result: bytes | Exception
        try:
            result = await work
        except asyncio.CancelledError:
            result = CallError(GrpcStatus.UNAVAILABLE, "the hook server is stopping")
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
