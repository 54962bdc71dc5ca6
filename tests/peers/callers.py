"""Call as kubelet does, with gRPC's C-core: a call by its path, and all that its caller gets.

grpc.aio sends the same frames, so it is no other peer; test_containerd.py has grpc-go."""

import contextlib
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import grpc

from tests.peers.script import Metadata, Script, metadata_of

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


class Options(TypedDict, total=False):
    tag: str
    deadline_s: float
    compression: grpc.Compression | None  # the request's


class Call:
    """Represent a call that is under way."""

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
        """Read the other replies until the call is over."""
        with contextlib.suppress(grpc.RpcError):
            self._replies += self._rpc
        if self._withheld:
            self._withheld.put(None)
        rpc = self._rpc
        return Seen(
            code=rpc.code().name,
            details=rpc.details() or "",
            replies=tuple(r if len(r) <= _SHOWN else f"{len(r)} bytes, {sha256(r).hexdigest()}" for r in self._replies),
            initial=tuple(rpc.initial_metadata() or ()),
            trailing=tuple(rpc.trailing_metadata() or ()),
        )


class Caller:
    """Make calls. A `request` of None: the call's headers are sent, and no message."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)

    def open(self, path: str, request: bytes | None, script: Script, **options: Unpack[Options]) -> Call:
        timeout, metadata = options.get("deadline_s", DEADLINE_S), metadata_of(script, options.get("tag", ""))
        if request is not None:
            rpc = self._channel.unary_stream(path, bytes, bytes)
            return Call(rpc(request, timeout=timeout, metadata=metadata, compression=options.get("compression")))
        withheld: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests: Iterator[bytes] = iter(withheld.get, None)  # None ends it
        stream = self._channel.stream_stream(path, bytes, bytes)
        return Call(stream(requests, timeout=timeout, metadata=metadata), withheld)

    def connect(self) -> None:
        """Connect without a call; otherwise the first call does it."""
        grpc.channel_ready_future(self._channel).result(DEADLINE_S)

    def close(self) -> None:
        self._channel.close()


def ask(caller: Caller, path: str, request: bytes, script: Script = ECHO, **options: Unpack[Options]) -> Seen:
    return caller.open(path, request, script, **options).end()
