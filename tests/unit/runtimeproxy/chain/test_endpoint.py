"""Test when an endpoint makes, keeps and closes connections, and how it reports a server that could not be asked in time."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lading.grpc.server import ServerConnection
from lading.log import Log
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain import endpoint as endpoint_module
from runtimeproxy.chain.endpoint import MAX_IDLE, RETRY_PAUSE_S, Endpoint, Failure
from tests.fakes.hook_server import HookServer
from tests.fakes.simulated_time import SimulatedLoop, run_simulated

FAILURE = Failure(reason=Reason.HOOK_INVALID, message="garbage")
SHORT = 0.05  # seconds; a time that a test waits for in full


class Peer:
    """Answers a question with the same, unless it `hangs`; counts its connections, which it can `close`."""

    def __init__(self) -> None:
        self.made = 0
        self.ended = 0
        self.hangs = False
        self.asked = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self._writers.append(writer)
        methods = {b"/lading.hook.v1.Hook/Adjust": lambda message: message}
        server = ServerConnection(lambda _: methods, failed=print, later=print)
        while data := await reader.read(1 << 16):
            self.asked.set()
            if not self.hangs:
                writer.write(server.receive(data))
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
async def serving(path: Path, log: Log) -> AsyncIterator[tuple[Peer, Endpoint]]:
    peer, endpoint = Peer(), Endpoint(str(path), log, owner_uid=os.geteuid())
    server = await asyncio.start_unix_server(peer.serve, path)
    try:
        yield peer, endpoint
    finally:
        await endpoint.close(grace_s=None)
        server.close()
        await server.wait_closed()
        await peer.closed()


def go(path: Path, log: Log, body: Callable[[Peer, Endpoint], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), serving(path, log) as (peer, endpoint):
            await body(peer, endpoint)

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  a few turns of the loop
        await asyncio.sleep(0)


async def ask(endpoint: Endpoint, pod: str = "p", *, timeout_s: float = 5) -> str | Failure:
    """Return the pod's name as the server repeats it."""
    request = hook.AdjustRequest(sandbox=hook.PodSandbox(name=pod))
    answer = await endpoint.adjust(request, until=asyncio.get_running_loop().time() + timeout_s, patient=False)
    return answer if isinstance(answer, Failure) else hook.AdjustRequest.FromString(answer).sandbox.name


def test_one_connection_serves_calls_that_follow_each_other(sockets: Path, log: Log) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        assert [await ask(endpoint, pod) for pod in "123"] == ["1", "2", "3"]
        assert peer.made == 1

    go(sockets / "a", log, body)


def test_calls_at_the_same_time_do_not_wait_for_each_other_and_few_connections_are_kept(sockets: Path, log: Log) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        pods = [str(number) for number in range(100)]
        assert await asyncio.gather(*(ask(endpoint, pod) for pod in pods)) == pods
        assert 1 < peer.made <= 100
        await until(lambda: peer.made - peer.ended == MAX_IDLE)

    go(sockets / "a", log, body)


def test_a_call_that_is_late_ends_its_connection(sockets: Path, log: Log) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        peer.hangs = True
        late = await ask(endpoint, timeout_s=SHORT)
        assert isinstance(late, Failure)
        assert late.reason is Reason.HOOK_TIMEOUT
        await until(lambda: peer.ended == 1)
        peer.hangs = False
        assert await ask(endpoint, "y") == "y"
        assert peer.made == 2

    go(sockets / "a", log, body)


def test_a_connection_that_its_server_closed_is_forgotten(sockets: Path, log: Log) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        await ask(endpoint)
        peer.close()
        await until(lambda: not endpoint._idle)
        assert await ask(endpoint, "y") == "y"
        assert peer.made == 2

    go(sockets / "a", log, body)


def test_a_server_that_closes_instead_of_answering(sockets: Path, log: Log) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        peer.hangs = True
        call = asyncio.create_task(ask(endpoint))
        await peer.asked.wait()
        peer.close()
        failure = await call
        assert isinstance(failure, Failure)
        assert (failure.reason, failure.passing) == (Reason.HOOK_UNAVAILABLE, True)

    go(sockets / "a", log, body)


@pytest.mark.parametrize("grace_s", [None, SHORT])
def test_a_close_ends_what_is_not_answered(sockets: Path, log: Log, grace_s: float | None) -> None:
    async def body(peer: Peer, endpoint: Endpoint) -> None:
        peer.hangs = True
        call = asyncio.create_task(ask(endpoint))
        await peer.asked.wait()
        await endpoint.close(grace_s=grace_s)
        for failure in (await call, await ask(endpoint)):
            assert isinstance(failure, Failure)
            assert (failure.reason, failure.passing) == (Reason.HOOK_UNAVAILABLE, False)

    go(sockets / "a", log, body)


def test_a_server_that_is_away_is_not_called_late_by_a_busy_loop(sockets: Path, log: Log) -> None:
    """The time ran out between two attempts, of which the last one knew better."""

    async def run() -> bytes | Failure:
        endpoint = Endpoint(str(sockets / "none"), log, owner_uid=0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.call_later(0.5 * RETRY_PAUSE_S, loop.hold_up, 3 * RETRY_PAUSE_S)
        return await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 2 * RETRY_PAUSE_S, patient=True)

    answer = run_simulated(run())
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE


def test_a_server_that_came_late_is_not_said_to_have_been_slow(sockets: Path, log: Log) -> None:
    """The time left for the answer may have been too short, because the server was away before."""

    async def run() -> bytes | Failure:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as late:  # listens, and never accepts

            def come() -> None:
                late.bind(str(sockets / "late"))
                late.listen()

            loop.call_later(0.5 * RETRY_PAUSE_S, come)
            endpoint = Endpoint(str(sockets / "late"), log, owner_uid=os.geteuid())
            return await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 3 * RETRY_PAUSE_S, patient=True)

    answer = run_simulated(run())
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE


# whether a server answers


async def probe(path: Path, log: Log) -> Endpoint:
    endpoint = Endpoint(str(path), log, owner_uid=os.geteuid())
    await endpoint.probe()
    return endpoint


def test_a_server_that_greets_answers_and_one_that_is_not_there_does_not(sockets: Path, log: Log) -> None:
    async def body() -> None:
        async with HookServer(sockets / "a.sock"):
            assert (await probe(sockets / "a.sock", log)).silence == ""
        assert str(sockets / "b.sock") in (await probe(sockets / "b.sock", log)).silence

    asyncio.run(body())


def test_a_server_that_only_lets_connect_does_not_answer(sockets: Path, log: Log) -> None:
    async def body() -> None:
        with socket.socket(socket.AF_UNIX) as hung:  # listens, and never accepts
            hung.bind(str(sockets / "hung.sock"))
            hung.listen()
            assert str(sockets / "hung.sock") in (await probe(sockets / "hung.sock", log)).silence

    run_simulated(body())


def test_a_server_that_was_not_probed_yet_does_not_answer(sockets: Path, log: Log) -> None:
    async def body() -> None:
        endpoint = Endpoint(str(sockets / "a.sock"), log, owner_uid=0)
        assert endpoint.silence
        endpoint.record(None, name="10.json")
        assert endpoint.silence == ""

    asyncio.run(body())


def test_a_question_that_failed_outweighs_a_greeting_until_one_succeeds(sockets: Path, log: Log) -> None:
    async def body() -> None:
        async with HookServer(sockets / "a.sock"):
            endpoint = await probe(sockets / "a.sock", log)
        endpoint.record(FAILURE, name="10.json")
        assert endpoint.silence == "garbage"
        endpoint.record(None, name="10.json")
        assert endpoint.silence == ""

    asyncio.run(body())


def test_a_failure_is_forgotten_after_a_while(sockets: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with HookServer(sockets / "a.sock"):
            endpoint = await probe(sockets / "a.sock", log)
        endpoint.record(FAILURE, name="10.json")
        monkeypatch.setattr(endpoint_module, "REMEMBER_S", -1.0)
        assert endpoint.silence == ""

    asyncio.run(body())
