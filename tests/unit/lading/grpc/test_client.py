"""Test connections to a hook server: when one is opened, kept and closed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lading.grpc.client import MAX_IDLE, ClosedError, Connections
from lading.grpc.conversation import Conversation
from lading.grpc.exchange import Reply
from lading.http2.messages import GrpcStatus

PATH = b"/test/Echo"
SHORT = 0.05  # seconds; a time that a test waits for in full


class Peer:
    """Answer each request with its content, unless it `hangs`; count the connections, which it can `close`."""

    def __init__(self) -> None:
        self.made = 0
        self.ended = 0
        self.hangs = False
        self.asked = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self._writers.append(writer)
        conversation = Conversation({PATH: lambda message: message}, failed=print, later=print)
        while data := await reader.read(1 << 16):
            self.asked.set()
            if not self.hangs:
                writer.write(conversation.receive(data))
        self.ended += 1
        self.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    async def closed(self) -> None:
        self.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        await until(lambda: self.ended == self.made)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[Peer, Connections]]:
    peer, connections = Peer(), Connections(str(path), limit=1000)
    server = await asyncio.start_unix_server(peer.serve, path)
    try:
        yield peer, connections
    finally:
        await connections.close(grace_s=None)
        server.close()
        await server.wait_closed()
        await peer.closed()


def go(short_folder: Path, body: Callable[[Peer, Connections], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), serving(short_folder / "a") as (peer, connections):
            await body(peer, connections)

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  a few turns of the loop
        await asyncio.sleep(0)


def test_one_connection_serves_calls_that_follow_each_other(short_folder: Path) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        for message in (b"1", b"2", b"3"):
            assert await connections.call(PATH, message, timeout_s=5) == Reply(status=GrpcStatus.OK, content=message)
        assert peer.made == 1

    go(short_folder, body)


def test_calls_at_the_same_time_do_not_wait_for_each_other_and_few_connections_are_kept(short_folder: Path) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        messages = [b"%d" % number for number in range(100)]
        answers = await asyncio.gather(*(connections.call(PATH, message, timeout_s=5) for message in messages))
        assert [answer.content for answer in answers] == messages
        assert 1 < peer.made <= 100
        await until(lambda: peer.made - peer.ended == MAX_IDLE)

    go(short_folder, body)


def test_a_call_that_is_late_ends_its_connection(short_folder: Path) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        peer.hangs = True
        with pytest.raises(TimeoutError):
            await connections.call(PATH, b"x", timeout_s=SHORT)
        await until(lambda: peer.ended == 1)
        peer.hangs = False
        assert (await connections.call(PATH, b"y", timeout_s=5)).content == b"y"
        assert peer.made == 2

    go(short_folder, body)


def test_a_connection_that_its_server_closed_is_forgotten(short_folder: Path) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        await connections.call(PATH, b"x", timeout_s=5)
        peer.close()
        await until(lambda: not connections._idle)
        assert (await connections.call(PATH, b"y", timeout_s=5)).content == b"y"

    go(short_folder, body)


def test_a_server_that_closes_instead_of_answering(short_folder: Path) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        peer.hangs = True
        call = asyncio.create_task(connections.call(PATH, b"x", timeout_s=5))
        await peer.asked.wait()
        peer.close()
        with pytest.raises(ConnectionResetError):
            await call

    go(short_folder, body)


def test_no_one_there(short_folder: Path) -> None:
    async def body() -> None:
        with pytest.raises(FileNotFoundError):
            await Connections(str(short_folder / "b"), limit=1000).call(PATH, b"x", timeout_s=5)

    asyncio.run(body())


@pytest.mark.parametrize("grace_s", [None, SHORT])
def test_a_close_ends_what_is_not_answered(short_folder: Path, grace_s: float | None) -> None:
    async def body(peer: Peer, connections: Connections) -> None:
        peer.hangs = True
        call = asyncio.create_task(connections.call(PATH, b"x", timeout_s=5))
        await peer.asked.wait()
        await connections.close(grace_s=grace_s)
        with pytest.raises(ClosedError):
            await call
        with pytest.raises(ClosedError):
            await connections.call(PATH, b"x", timeout_s=5)

    go(short_folder, body)
