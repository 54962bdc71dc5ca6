"""Call as kubelet does, with two gRPC clients, C-core's and grpc.aio: a call by its path, and all that its caller gets."""

import asyncio
import contextlib
import hashlib
import queue
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, TypeVar, Unpack

import grpc
import grpc.aio

from tests.peers.loop import LoopThread
from tests.peers.script import Metadata, Script, metadata_of

T = TypeVar("T")

DEADLINE_S: Final = 30.0
ECHO: Final = Script()
_SHOWN: Final = 4096  # bytes of a reply that a failing test should show
_OPTIONS: Final = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    code: str
    details: str
    replies: tuple[str | bytes, ...]  # in their order; of a large one its hash
    initial: Metadata
    trailing: Metadata


class Call(Protocol):
    """Represent a call that is under way."""

    def read(self) -> bytes: ...

    def cancel(self) -> None: ...

    def end(self) -> Seen:
        """Read the other replies until the call is over."""


class Options(TypedDict, total=False):
    tag: str
    deadline_s: float
    compression: grpc.Compression | None  # the request's


class Caller(Protocol):
    """Make calls. A `request` of None: the call's headers are sent, and no message."""

    def open(self, path: str, request: bytes | None, script: Script, **options: Unpack[Options]) -> Call: ...

    def connect(self) -> None:
        """Connect without a call; otherwise the first call does it."""

    def close(self) -> None: ...


def ask(caller: Caller, path: str, request: bytes, script: Script = ECHO, **options: Unpack[Options]) -> Seen:
    return caller.open(path, request, script, **options).end()


def _seen(code: grpc.StatusCode, details: str | None, replies: Iterable[bytes], initial: Any, trailing: Any) -> Seen:
    shown = tuple(r if len(r) <= _SHOWN else f"{len(r)} bytes, {hashlib.sha256(r).hexdigest()}" for r in replies)
    return Seen(
        code=code.name, details=details or "", replies=shown, initial=tuple(initial or ()), trailing=tuple(trailing or ())
    )


class CoreCaller:
    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)

    def open(self, path: str, request: bytes | None, script: Script, **options: Unpack[Options]) -> Call:
        timeout, metadata = options.get("deadline_s", DEADLINE_S), metadata_of(script, options.get("tag", ""))
        if request is not None:
            rpc = self._channel.unary_stream(path, bytes, bytes)
            return _CoreCall(rpc(request, timeout=timeout, metadata=metadata, compression=options.get("compression")))
        withheld: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests: Iterator[bytes] = iter(withheld.get, None)  # None ends it
        stream = self._channel.stream_stream(path, bytes, bytes)
        return _CoreCall(stream(requests, timeout=timeout, metadata=metadata), withheld)

    def connect(self) -> None:
        grpc.channel_ready_future(self._channel).result(DEADLINE_S)

    def close(self) -> None:
        self._channel.close()


class _CoreCall:
    def __init__(self, rpc: Any, withheld: "queue.SimpleQueue[bytes | None] | None" = None) -> None:
        self._rpc = rpc
        self._withheld = withheld
        self._replies: list[bytes] = []

    def read(self) -> bytes:
        self._replies.append(next(self._rpc))
        return self._replies[-1]

    def cancel(self) -> None:
        self._rpc.cancel()

    def end(self) -> Seen:
        with contextlib.suppress(grpc.RpcError):
            self._replies += self._rpc
        if self._withheld:
            self._withheld.put(None)
        rpc = self._rpc
        return _seen(rpc.code(), rpc.details(), self._replies, rpc.initial_metadata(), rpc.trailing_metadata())


class AioCaller:
    def __init__(self, path: Path, loop: LoopThread) -> None:
        self._loop = loop
        self._channel = loop.do(self._connect(path))

    async def _connect(self, path: Path) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)

    def open(self, path: str, request: bytes | None, script: Script, **options: Unpack[Options]) -> Call:
        timeout, metadata = options.get("deadline_s", DEADLINE_S), metadata_of(script, options.get("tag", ""))

        async def start() -> Any:
            if request is None:
                open_stream: Any = self._channel.stream_stream(path, bytes, bytes)  # grpc's stubs demand optional arguments
                return open_stream(timeout=timeout, metadata=metadata)
            rpc = self._channel.unary_stream(path, bytes, bytes)
            return rpc(request, timeout=timeout, metadata=metadata, compression=options.get("compression"))

        return _AioCall(self._loop.do(start()), self._loop)

    def connect(self) -> None:
        self._loop.do(self._channel.channel_ready())

    def close(self) -> None:
        self._loop.do(self._channel.close(None))


class _AioCall:
    def __init__(self, rpc: Any, loop: LoopThread) -> None:
        self._rpc = rpc
        self._incoming: AsyncIterator[bytes] = rpc.__aiter__()
        self._loop = loop
        self._replies: list[bytes] = []

    def read(self) -> bytes:
        self._replies.append(self._loop.do(self._next()))
        return self._replies[-1]

    async def _next(self) -> bytes:
        return await anext(self._incoming)

    def cancel(self) -> None:
        async def cancel() -> None:
            self._rpc.cancel()

        self._loop.do(cancel())

    def end(self) -> Seen:
        return self._loop.do(self._end())

    async def _end(self) -> Seen:
        rpc = self._rpc
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for reply in self._incoming:
                self._replies.append(reply)  # also those before an error
        code, details = await rpc.code(), await rpc.details()
        initial, trailing = await _unless_cancelled(rpc.initial_metadata()), await _unless_cancelled(rpc.trailing_metadata())
        return _seen(code, details, self._replies, initial, trailing)


CLIENTS: Final = ("core-client", "aio-client")


def connect(client: str, path: Path, loop: LoopThread) -> Caller:
    """`client`: one of CLIENTS."""
    return CoreCaller(path) if client == "core-client" else AioCaller(path, loop)


async def _unless_cancelled(metadata: Coroutine[Any, Any, T]) -> T | None:
    """grpc.aio raises where the C-core client has none."""
    try:
        return await metadata
    except (asyncio.CancelledError, grpc.RpcError):
        return None
