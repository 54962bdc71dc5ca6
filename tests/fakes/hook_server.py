"""Run a hook server on a Unix socket with scripted answers: an adjustment, a refusal, garbage, an error, or no answer.

The server is a real gRPC server, parses each question, and records the questions in order. `hang` delays the answers until the
server stops or `release` is called, so that a test decides which answers are late without waiting for a clock.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from protos.hook.v1 import hook_pb2 as hook

HOOK = "lading.hook.v1.Hook"
KOORDLET = "runtime.v1alpha1.RuntimeHookService"
Context = grpc.aio.ServicerContext[bytes, bytes]


class HookServer:
    def __init__(self, path: Path, *, service: str = HOOK) -> None:
        self.asked: list[hook.AdjustRequest] = []
        self.observed: list[hook.ObserveRequest] = []
        self.arrived = asyncio.Event()  # set by each question and each observation
        self._answer: bytes | grpc.StatusCode = b""
        self._free = asyncio.Event()
        self._free.set()
        self.adjust(hook.Adjustment())
        self._server = grpc.aio.server()
        handlers = {
            "Adjust": grpc.unary_unary_rpc_method_handler(self._adjust),
            "Observe": grpc.unary_unary_rpc_method_handler(self._observe),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix:{path}")

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        await self.stop()

    async def stop(self) -> None:
        """Stop serving, and answer nothing that is asked. May be called twice."""
        await self._server.stop(None)

    def adjust(self, adjustment: hook.Adjustment) -> None:
        self._answer = hook.AdjustResponse(adjustment=adjustment).SerializeToString()

    def refuse(self, reason: str, message: str) -> None:
        self._answer = hook.AdjustResponse(refusal=hook.Refusal(reason=reason, message=message)).SerializeToString()

    def answer_bytes(self, answer: bytes) -> None:
        self._answer = answer

    def fail(self, code: grpc.StatusCode) -> None:
        self._answer = code

    def hang(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def _adjust(self, request: bytes, context: Context) -> bytes:
        self.asked.append(hook.AdjustRequest.FromString(request))
        self.arrived.set()
        await self._free.wait()
        if isinstance(self._answer, grpc.StatusCode):
            await context.abort(self._answer, "scripted")
        assert isinstance(self._answer, bytes)
        return self._answer

    async def _observe(self, request: bytes, context: Context) -> bytes:
        self.observed.append(hook.ObserveRequest.FromString(request))
        self.arrived.set()
        await self._free.wait()
        return hook.ObserveResponse().SerializeToString()
