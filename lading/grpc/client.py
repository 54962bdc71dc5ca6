"""Hold the connections to one server, each for one call at a time. A call that finds none idle dials another.

A call that times out closes its connection, so that the server learns of the timeout. An idle connection that its server
closes is forgotten at once.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Final, cast

from lading.dial import dial
from lading.grpc.exchange import Exchange, Reply
from lading.http2.frames import MalformedFrameError

# This many calls may be open at a time; kubelet makes a few. The accept queue of a server is about as long.
MAX_OPEN: Final = 64
MAX_IDLE: Final = 4


class ClosedError(Exception):
    """Report that the proxy closed the connections, because the server is not registered any more."""


class Connections:
    def __init__(self, path: str, *, limit: int) -> None:
        """Create an empty pool. `limit`: bytes of the largest accepted answer."""
        self._path = path
        self._limit = limit
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._places = asyncio.Semaphore(MAX_OPEN)
        self._closed = False

    async def call(self, method: bytes, message: bytes, *, timeout_s: float) -> Reply:
        async with asyncio.timeout(timeout_s), self._places:
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = await dial(lambda: _Connection(self._limit, self._lost), self._path)
            if self._closed:
                connection.abort()
                raise ClosedError
            self._busy.add(connection)
            try:
                return await connection.call(method, message, timeout_s)
            except OSError as e:
                if self._closed:
                    raise ClosedError from e
                raise
            finally:
                self._busy.discard(connection)
                self._keep(connection)

    async def close(self, *, grace_s: float | None) -> None:
        """End calls after `grace_s` seconds (None: at once). May be called twice."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        if grace_s and self._busy:
            await asyncio.wait([connection.settled for connection in self._busy], timeout=grace_s)
        for connection in list(self._busy):
            connection.abort()
        await asyncio.sleep(0)  # a turn of the loop, so that connection_lost runs for each connection

    def _keep(self, connection: "_Connection") -> None:
        if connection.reusable and not self._closed and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    def _lost(self, connection: "_Connection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    def __init__(self, limit: int, lost: Callable[["_Connection"], None]) -> None:
        self.settled: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()  # reply to the last call
        self.settled.cancel()  # no call was made yet
        self._exchange = Exchange(limit=limit)
        self._transport: asyncio.Transport | None = None
        self._on_lost = lost

    @property
    def reusable(self) -> bool:
        """Return whether another call can be made. After a timeout it cannot: the call is still open at the server, until the
        connection is closed."""
        return self._exchange.answer is not None and not self._exchange.ended and self._open

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, method: bytes, message: bytes, timeout_s: float) -> Reply:
        if not self._open or self._transport is None:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        self.settled = asyncio.get_running_loop().create_future()
        self._transport.write(self._exchange.begin(method, message, timeout_s=timeout_s))
        return await self.settled

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        try:
            reply = exchange.receive(data)
        except MalformedFrameError as e:
            self._fail(ConnectionError(errno.EPROTO, f"not gRPC: {e}"))
            return
        if reply and self._open and self._transport is not None:
            self._transport.write(reply)
        if exchange.answer is not None and not self.settled.done():
            self.settled.set_result(exchange.answer)
        if exchange.ended and self.settled.done():
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError(errno.ECONNRESET, "the connection was closed"))
        self._on_lost(self)

    def _fail(self, error: OSError) -> None:
        if not self.settled.done():
            self.settled.set_exception(error)
        self.abort()
