"""Serve the hook API (`lading.hook.v1.Hook`) over a Unix socket: one request in, one decision out.

This module has the gRPC methods; `lading.grpc` has the server. A request that needs no waiting is answered at once. Attaching a
container's VFs, or giving a sandbox's VFs back, takes time: a separate task answers such a request.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from hooks.frontends.cri_hook.messages import Result, read_container, read_sandbox, render_result
from hooks.model.assignment import Refusal
from hooks.model.container import Sandbox
from hooks.ports import NodePort
from lading.errors import place_of
from lading.grpc.server import CallError, Later, Method, UnaryServer
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.sockets import Listener, Peer
from lading.tracing import OFF, Span, Tracing
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Hook"
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


class HookServer(UnaryServer):
    """Serve the hook API, as the front end of a node whose runtime is called through the proxy."""

    def __init__(self, service: Service, log: Log, *others: PeerService, listener: Listener) -> None:
        """Create the server. It serves `others` on the same socket as `service`."""

        def methods(peer: Callable[[], Peer]) -> Mapping[bytes, Method]:
            by_path = dict(service.methods())
            for other in others:
                by_path.update(other.methods(peer))
            return by_path

        def failed(error: Exception) -> None:
            log.error(Event.GRANT_REFUSED, f"internal error: {place_of(error)}", reason=Reason.INTERNAL)

        super().__init__(methods, listener=listener, failed=failed)

    def conditions(self) -> Mapping[str, str]:
        """Return no conditions: the daemon itself checks the socket (`missing_socket`)."""
        return {}
