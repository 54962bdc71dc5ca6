"""Run a gRPC server of unary calls in raw bytes, in threads, by which a test scripts a runtime or a hook server.

A function of the test answers each call, or raises a `Fail` with the status. The function may hold a call for as long as
needed; other calls continue meanwhile.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import grpc

if TYPE_CHECKING:  # generic in the stubs only
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:
    _Handler = grpc.GenericRpcHandler

WORKERS = 64


class Call(NamedTuple):
    path: str  # /service/Method
    request: bytes
    deadline_s: float | None  # seconds that the caller had left when the call came

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


class Fail(Exception):  # noqa: N818  it reads `raise Fail(...)`
    def __init__(self, code: grpc.StatusCode, details: str = "scripted") -> None:
        super().__init__(details)
        self.code = code
        self.details = details


Answer = Callable[[Call], bytes]


class RawServer:
    """Serve at a Unix socket. `start` after `stop` serves again at the same path."""

    def __init__(self, path: Path, answer: Answer, *, workers: int = WORKERS) -> None:
        self.path = path
        self.answer = answer
        self._workers = workers
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        server = grpc.server(ThreadPoolExecutor(self._workers, thread_name_prefix=f"serve-{self.path.name}"))
        server.add_generic_rpc_handlers((_Every(self),))
        server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Open calls are cut off, as when a process dies. Works twice."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None


class _Every(_Handler):
    """Handle calls of any method."""

    def __init__(self, server: RawServer) -> None:
        self._server = server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        path = handler_call_details.method

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return self._server.answer(Call(path, request, context.time_remaining()))
            except Fail as e:
                context.abort(e.code, e.details)

        return grpc.unary_unary_rpc_method_handler(handle)
