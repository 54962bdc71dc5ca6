"""Test when an endpoint makes, keeps and closes connections, and how it reports a server that could not be asked in time."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lading.grpc.server import ServerConnection
from lading.log import Log
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain import endpoint as endpoint_module
from runtimeproxy.chain.endpoint import MAX_IDLE, RETRY_PAUSE_S, Endpoint, Failure
from tests.coroutines import until
from tests.fakes.hook_server import HookServer
from tests.fakes.simulated_time import SimulatedLoop

FAILURE = Failure(reason=Reason.HOOK_INVALID, message="garbage")
SHORT = 0.05  # seconds; a time that a test waits for in full


class Peer:
    """Answer each question with its own bytes, unless the peer `hangs`; count its connections, which it can `close`."""

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


@pytest.fixture
async def peer(short_folder: Path) -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_unix_server(peer.serve, short_folder / "a")
    try:
        yield peer
    finally:
        server.close()
        await server.wait_closed()
        await peer.closed()


@pytest.fixture
async def endpoint(short_folder: Path, log: Log) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(str(short_folder / "a"), log, owner_uid=os.geteuid())
    yield endpoint
    await endpoint.close(grace_s=None)


async def ask(endpoint: Endpoint, pod: str = "p", *, timeout_s: float = 5) -> str | Failure:
    """Return the pod's name as the server repeats it."""
    request = hook.AdjustRequest(sandbox=hook.PodSandbox(name=pod))
    answer = await endpoint.adjust(request, until=asyncio.get_running_loop().time() + timeout_s, patient=False)
    return answer if isinstance(answer, Failure) else hook.AdjustRequest.FromString(answer).sandbox.name


async def test_one_connection_serves_calls_that_follow_each_other(peer: Peer, endpoint: Endpoint) -> None:
    assert [await ask(endpoint, pod) for pod in "123"] == ["1", "2", "3"]
    assert peer.made == 1


async def test_calls_at_the_same_time_do_not_wait_for_each_other_and_few_connections_are_kept(
    peer: Peer, endpoint: Endpoint
) -> None:
    pods = [str(number) for number in range(100)]
    assert await asyncio.gather(*(ask(endpoint, pod) for pod in pods)) == pods
    assert 1 < peer.made <= 100
    await until(lambda: peer.made - peer.ended == MAX_IDLE)


async def test_a_call_that_is_late_ends_its_connection(peer: Peer, endpoint: Endpoint) -> None:
    peer.hangs = True
    late = await ask(endpoint, timeout_s=SHORT)
    assert isinstance(late, Failure)
    assert late.reason is Reason.HOOK_TIMEOUT
    await until(lambda: peer.ended == 1)
    peer.hangs = False
    assert await ask(endpoint, "y") == "y"
    assert peer.made == 2


async def test_a_connection_that_its_server_closed_is_forgotten(peer: Peer, endpoint: Endpoint) -> None:
    await ask(endpoint)
    peer.close()
    await until(lambda: not endpoint._idle)
    assert await ask(endpoint, "y") == "y"
    assert peer.made == 2


async def test_a_server_that_closes_instead_of_answering_is_unavailable(peer: Peer, endpoint: Endpoint) -> None:
    peer.hangs = True
    call = asyncio.create_task(ask(endpoint))
    await peer.asked.wait()
    peer.close()
    failure = await call
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.passing) == (Reason.HOOK_UNAVAILABLE, True)


@pytest.mark.parametrize("grace_s", [None, SHORT])
async def test_closing_an_endpoint_ends_calls_without_an_answer(grace_s: float | None, peer: Peer, endpoint: Endpoint) -> None:
    peer.hangs = True
    call = asyncio.create_task(ask(endpoint))
    await peer.asked.wait()
    await endpoint.close(grace_s=grace_s)
    for failure in (await call, await ask(endpoint)):
        assert isinstance(failure, Failure)
        assert (failure.reason, failure.passing) == (Reason.HOOK_UNAVAILABLE, False)


@pytest.mark.simulated_time
async def test_a_server_that_is_away_is_not_called_late_by_a_busy_loop(endpoint: Endpoint) -> None:
    """Check a time that runs out between two attempts, of which the last one found no server."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.call_later(0.5 * RETRY_PAUSE_S, loop.hold_up, 3 * RETRY_PAUSE_S)
    answer = await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 2 * RETRY_PAUSE_S, patient=True)
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE


@pytest.mark.simulated_time
async def test_a_server_that_started_late_is_not_called_slow(short_folder: Path, endpoint: Endpoint) -> None:
    """Check that the time left for the answer may have been too short, because the server was away before."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as late:  # listens, and never accepts

        def start() -> None:
            late.bind(str(short_folder / "a"))
            late.listen()

        loop.call_later(0.5 * RETRY_PAUSE_S, start)
        answer = await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 3 * RETRY_PAUSE_S, patient=True)
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE


# whether a server answers


async def test_a_server_that_greets_answers_and_an_absent_server_does_not(short_folder: Path, endpoint: Endpoint) -> None:
    await endpoint.probe()
    assert str(short_folder / "a") in endpoint.silence
    async with HookServer(short_folder / "a"):
        await endpoint.probe()
    assert endpoint.silence == ""


@pytest.mark.simulated_time
async def test_a_server_that_accepts_no_connection_does_not_answer(short_folder: Path, endpoint: Endpoint) -> None:
    with socket.socket(socket.AF_UNIX) as hung:  # listens, and never accepts
        hung.bind(str(short_folder / "a"))
        hung.listen()
        await endpoint.probe()
    assert str(short_folder / "a") in endpoint.silence


async def test_a_server_that_was_not_probed_yet_does_not_answer(endpoint: Endpoint) -> None:
    assert endpoint.silence
    endpoint.record(None, name="10.json")
    assert endpoint.silence == ""


async def test_a_failed_call_outweighs_a_greeting_until_a_call_succeeds_or_time_has_passed(
    short_folder: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with HookServer(short_folder / "a"):
        await endpoint.probe()
    endpoint.record(FAILURE, name="10.json")
    assert endpoint.silence == "garbage"
    endpoint.record(None, name="10.json")
    assert endpoint.silence == ""
    endpoint.record(FAILURE, name="10.json")
    monkeypatch.setattr(endpoint_module, "REMEMBER_S", -1.0)
    assert endpoint.silence == ""
