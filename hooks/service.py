"""The hook API (`lading.hook.v1.Hook`) over a Unix socket: one request in, one decision out.

grpclib serves it, because it takes a listening socket: systemd's, or one made with care, which drops peers that are not
trusted (lading.sockets). grpcio binds its own.
"""

import time
from collections.abc import Callable
from typing import Final

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from hooks.assignment.model import Refusal
from hooks.decide import Answer
from hooks.node import Node
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Hook"
OK: Final = 0


class HookService:
    def __init__(self, node: Node, *, answered: Callable[[Answer | Refusal, float], None] = lambda *_: None) -> None:
        """`answered` is told of each container that was asked about, with the seconds that it took."""
        self._node = node
        self._answered = answered

    def __mapping__(self) -> dict[str, Handler]:
        adjust = Handler(self._adjust, Cardinality.UNARY_UNARY, hook_pb2.AdjustRequest, hook_pb2.AdjustResponse)
        observe = Handler(self._observe, Cardinality.UNARY_UNARY, hook_pb2.ObserveRequest, hook_pb2.ObserveResponse)
        return {f"/{SERVICE}/Adjust": adjust, f"/{SERVICE}/Observe": observe}

    async def _adjust(self, stream: Stream[hook_pb2.AdjustRequest, hook_pb2.AdjustResponse]) -> None:
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "no request")
        await stream.send_message(self.adjust(request))

    async def _observe(self, stream: Stream[hook_pb2.ObserveRequest, hook_pb2.ObserveResponse]) -> None:
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "no request")
        self.observe(request)
        await stream.send_message(hook_pb2.ObserveResponse())

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
        if request.grpc_status != OK:
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
