"""Serve gRPC's unary calls on a Unix socket. `conversation` speaks gRPC on each connection.

A call that needs no waiting is answered at once. A method may return a coroutine instead: a separate task answers such a call.
The listening socket is systemd's, or one that drops untrusted peers (lading.sockets).

Tests: tests/unit/hooks/frontends/cri_hook/test_service.py
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

from lading.grpc.conversation import CallError, Conversation, Later, Method
from lading.http2.frames import MalformedFrameError
from lading.http2.messages import GrpcStatus
from lading.sockets import Listener, Peer, peer_credentials, serve

# Maximum bytes buffered for a client that does not read. Above it, the server does not read that client's requests either.
_HIGH_WATER: Final = 1 << 20
# Seconds that `close` waits for pending answers; systemd kills the daemon after 30 s.
DRAIN_S: Final = 5.0

# The methods by path, for calls of the process that the argument returns.
MethodsFor = Callable[[Callable[[], Peer]], Mapping[bytes, Method]]


class UnaryServer:
    """Hold the listening socket and its connections. `close` ends them: it answers the requests received before, within
    `DRAIN_S`, and accepts no later ones."""

    def __init__(self, methods: MethodsFor, *, listener: Listener, failed: Callable[[Exception], None]) -> None:
        """Create the server. `failed` gets each exception of a method that is not a CallError."""
        self._methods = methods
        self._listener = listener
        self._failed = failed
        self._open: set[_Connection] = set()
        self._running: set[asyncio.Task[None]] = set()  # tasks of calls that are not answered yet
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await serve(
            lambda: _Connection(self._methods, self._open, self._running, failed=self._failed), self._listener
        )

    async def close(self) -> None:
        """Stop accepting requests, and answer the pending ones. May be called twice."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=DRAIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.sleep(0)  # let the connections see that they are closed


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        methods: MethodsFor,
        others: "set[_Connection]",
        running: set[asyncio.Task[None]],
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._conversation = Conversation(methods(self._peer), failed=failed, later=self._later)
        self._others = others
        self._running = running
        self._transport: asyncio.Transport | None = None
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport.write(self._conversation.greet())
        self._others.add(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._closing:
            return
        try:
            answer = self._conversation.receive(data)
        except MalformedFrameError as e:
            self._transport.write(self._conversation.farewell(e.code))
            self._transport.close()
            return
        if answer:
            self._transport.write(answer)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)

    def close(self) -> None:
        """Close the connection at once, or after the last answer."""
        if self._transport is None or self._transport.is_closing() or self._closing:
            return
        self._closing = True
        self._transport.write(self._conversation.farewell())
        self._close_answered()

    def _peer(self) -> Peer:
        assert self._transport is not None  # noqa: S101  a call came by it
        return peer_credentials(self._transport.get_extra_info("socket"))

    def _later(self, stream: int, work: Later) -> None:
        """Run the coroutine to its end, even if the caller gives up or the connection closes."""
        task = asyncio.get_running_loop().create_task(self._answer(stream, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, stream: int, work: Later) -> None:
        result: bytes | Exception
        try:
            result = await work
        except asyncio.CancelledError:
            result = CallError(GrpcStatus.UNAVAILABLE, "the hook server is stopping")
        except Exception as e:  # noqa: BLE001  as of a method that answers at once
            result = e
        answer = self._conversation.answer_later(stream, result)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)
            if self._closing:
                self._close_answered()

    def _close_answered(self) -> None:
        if self._transport is not None and not self._conversation.waiting:
            self._transport.close()
