"""Serve a CRI proxy as it is usually written in Python, for comparison: a gRPC server that passes bytes to a gRPC client.

One generic handler serves every method and parses no message, on `grpc.aio`: unary and server-streaming calls, the caller's
metadata, deadline and cancellation, the runtime's status and details. Nothing is held or changed, and metadata of successful
answers are dropped, so this proxy does less work than Lading's relay.

    python -m bench.grpc_aio_proxy LISTEN RUNTIME
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Final, cast

import grpc
import grpc.aio

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.default_authority", "localhost"),
)
# A gRPC server must know which methods stream; a relay need not.
STREAMS: Final = ("GetContainerEvents", "StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamImages")
_OWN: Final = ("grpc-", "user-agent")  # metadata that each hop writes anew

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Metadata = tuple[tuple[str, str | bytes], ...]


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = handler_call_details.method
        if method not in self._handlers:
            make = self._streaming if method.rpartition("/")[2] in STREAMS else self._unary
            self._handlers[method] = make(method)
        return self._handlers[method]

    def _unary(self, method: str) -> "grpc.RpcMethodHandler[bytes, bytes]":
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method, bytes, bytes)

        async def forward(request: bytes, context: _Context) -> bytes:
            try:
                return await rpc(request, timeout=context.time_remaining(), metadata=_metadata(context))
            except grpc.aio.AioRpcError as e:
                await context.abort(*_status(e))
                raise  # not reached: abort raises

        return grpc.unary_unary_rpc_method_handler(forward)

    def _streaming(self, method: str) -> "grpc.RpcMethodHandler[bytes, bytes]":
        rpc: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method, bytes, bytes)

        async def forward(request: bytes, context: _Context) -> AsyncIterator[bytes]:
            try:
                async for reply in rpc(request, timeout=context.time_remaining(), metadata=_metadata(context)):
                    yield reply
            except grpc.aio.AioRpcError as e:
                await context.abort(*_status(e))

        return grpc.unary_stream_rpc_method_handler(forward)


def _metadata(context: _Context) -> _Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if not key.startswith(_OWN))


def _status(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, _Metadata]:
    return error.code(), error.details() or "", cast("_Metadata", tuple(error.trailing_metadata() or ()))


async def serve(listen: str, runtime: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with grpc.aio.insecure_channel(f"unix:{runtime}", options=_OPTIONS) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((Proxy(channel),))
        server.add_insecure_port(f"unix:{listen}")
        await server.start()
        await stop.wait()
        await server.stop(1.0)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
