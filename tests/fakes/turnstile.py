"""A gRPC relay between a client and a server, at which a test can hold a call: before it goes on, or after it was answered.

So a process on either side can be killed at an exact step, without anything in it that knows of tests: the server has not heard
of a call that is held on the way there, and has done its work for one that is held on the way back, of which the client does
not know. Honest: messages, deadlines, statuses and their texts go through as they come; metadata does not (CRI uses none).
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
    """The next call that is what was asked for; later ones pass."""

    def __init__(self, way: Way, wanted: Callable[[Call], bool]) -> None:
        self._way = way
        self._wanted = wanted
        self._arrived = threading.Event()
        self._freed = threading.Event()
        self._lost = False

    def wait(self) -> None:
        """Until such a call stands there."""
        assert self._arrived.wait(_PATIENCE_S), "no such call came"

    def let_go(self) -> None:
        self._freed.set()

    def lose(self) -> None:
        """The call, or its answer, never arrives: the client hears UNAVAILABLE."""
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
        """`wanted` looks at the request."""
        held = Held(way, lambda call: call.method == method and wanted(call.request))
        self._held.append(held)
        return held

    def open(self) -> None:
        """Lets everything go, and holds nothing more."""
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
