"""Relay gRPC between a client and a server, and hold a call before it reaches the server, or after the server answered.

So a test can kill a process on either side at an exact step, without test code in it. A call that is held on the way there has
not reached the server. A call that is held on the way back was carried out, but the client has no answer. Messages, deadlines,
statuses and their texts pass unchanged; metadata does not pass (CRI uses none).
"""

import threading
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

import grpc

from tests.fakes.raw_server import Call, Fail, RawServer

_PATIENCE_S = 20.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", -1),
)


class Way(Enum):
    THERE = auto()
    BACK = auto()


class Held:
    """Hold the next call that matches; later calls pass."""

    def __init__(self, way: Way, wanted: Callable[[Call], bool]) -> None:
        self._way = way
        self._wanted = wanted
        self._arrived = threading.Event()
        self._freed = threading.Event()
        self._lost = False

    def wait(self) -> None:
        """Wait until a call is held."""
        assert self._arrived.wait(_PATIENCE_S), "no such call came"

    def let_go(self) -> None:
        self._freed.set()

    def lose(self) -> None:
        """Drop the call, or its answer: the client gets UNAVAILABLE."""
        self._lost = True
        self._freed.set()

    def stand(self, way: Way, call: Call) -> None:
        if way is not self._way or self._arrived.is_set() or not self._wanted(call):
            return
        self._arrived.set()
        self._freed.wait(_PATIENCE_S)
        if self._lost:
            raise Fail(grpc.StatusCode.UNAVAILABLE, "lost on the way")


class Turnstile(RawServer):
    def __init__(self, path: Path, target: Path) -> None:
        super().__init__(path, self._pass)
        self._channel = grpc.insecure_channel(f"unix:{target}", options=_OPTIONS)
        self._held: list[Held] = []

    def hold(self, way: Way, method: str, wanted: Callable[[bytes], bool] = lambda _: True) -> Held:
        """Hold the next call of this method whose request `wanted` accepts."""
        held = Held(way, lambda call: call.method == method and wanted(call.request))
        self._held.append(held)
        return held

    def open(self) -> None:
        """Release all held calls, and hold no more calls."""
        held, self._held = self._held, []
        for one in held:
            one.let_go()

    def stop(self) -> None:
        self.open()
        super().stop()
        self._channel.close()

    def _pass(self, call: Call) -> bytes:
        self._stand(Way.THERE, call)
        rpc = self._channel.unary_unary(call.path, request_serializer=None, response_deserializer=None)
        try:
            answer: bytes = rpc(call.request, timeout=call.deadline_s)
        except grpc.RpcError as e:
            raise Fail(e.code(), e.details() or "") from e
        self._stand(Way.BACK, call)
        return answer

    def _stand(self, way: Way, call: Call) -> None:
        for held in self._held.copy():
            held.stand(way, call)
