"""A gRPC server as the runtime, C-core's with threads: both services of CRI in both versions, by script.

It takes a socket's path, and answers what the scripts of calls say (script.py). As gRPC itself does, it refuses methods and
services that CRI does not have, except `Later`, which the proxy cannot know. Every handler is a stream of both directions, so
that it begins with the call's headers; on the wire that is the same as a unary one.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from protos.cri.runtime.v1 import api_pb2 as cri
from tests.peers.script import Script, answer_the_proxy, initial_of, reply_of, script_of, tag_of, trailing_of

VERSIONS: Final = ("v1", "v1alpha2")
METHODS: Final = tuple((s.name, m.name) for s in cri.DESCRIPTOR.services_by_name.values() for m in s.methods)
STREAMS: Final = tuple(
    (s.name, m.name) for s in cri.DESCRIPTOR.services_by_name.values() for m in s.methods if m.server_streaming
)
LATER: Final = ("RuntimeService", "Later")

# Streams at a time, and a few for the proxy's own calls.
_WORKERS: Final = 220
_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:
    _Handler = grpc.GenericRpcHandler


class _Services(_Handler):
    def __init__(self, behaviour: Callable[[str], Any]) -> None:
        served = (*METHODS, LATER)
        self._paths = {f"/runtime.{version}.{service}/{method}" for version in VERSIONS for service, method in served}
        self._behaviour = behaviour

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        path = handler_call_details.method
        return grpc.stream_stream_rpc_method_handler(self._behaviour(path)) if path in self._paths else None


class Runtime:
    """Follow the scripts of its callers."""

    def __init__(self, path: Path) -> None:
        self.arrived: set[str] = set()  # tags of calls whose headers came
        self.received: set[str] = set()  # tags of calls whose message came
        self.answered: set[str] = set()  # tags of calls whose every reply was sent
        self.over: set[str] = set()  # tags of calls that have ended, in whatever way
        self.sent = 0  # replies of all calls
        self._free = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix="runtime"), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Services(self._behaviour),))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def go_on(self) -> None:
        """Let all waiting calls go on, and later calls too until `wait_again`."""
        self._free.set()

    def wait_again(self) -> None:
        self._free.clear()

    def stop(self) -> None:
        self._free.set()
        self._server.stop(None).wait()

    def _behaviour(self, path: str) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            sent = tuple(context.invocation_metadata())
            script = script_of(sent)
            if script is None:
                yield answer_the_proxy(path, next(requests))
                return
            tag = tag_of(sent)
            self.arrived.add(tag)
            gone = threading.Event()

            def over() -> None:
                self.over.add(tag)
                gone.set()

            if not context.add_callback(over):  # the call has ended already, and gRPC does not call it any more
                over()
            try:
                request = next(requests)
            except (StopIteration, grpc.RpcError):  # the caller is gone, or ended without a message
                return
            self.received.add(tag)
            if script.gzip:
                context.set_compression(grpc.Compression.Gzip)
            context.send_initial_metadata(initial_of(sent))
            for number in range(script.replies):
                self._wait(script, number, gone)
                if gone.is_set():
                    return
                yield reply_of(script, request, number)
                self.sent += 1
            self.answered.add(tag)
            context.set_trailing_metadata(trailing_of(script))
            if script.code != "OK":
                context.set_code(grpc.StatusCode[script.code])
                context.set_details(script.details)

        return answer

    def _wait(self, script: Script, number: int, gone: threading.Event) -> None:
        while number == script.waits_after and not (self._free.is_set() or gone.is_set()):
            gone.wait(0.01)
