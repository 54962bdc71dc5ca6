import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from lading.liveness import find_silence
from lading.reasons import Reason
from runtimeproxy.chain import hookwatch
from runtimeproxy.chain.endpoint import Failure
from runtimeproxy.chain.hookwatch import HookWatch
from runtimeproxy.chain.registrations import Registration
from tests.fakes.hook_server import HookServer
from tests.fakes.simulated_time import run_simulated

FAILURE = Failure(reason=Reason.HOOK_INVALID, message="garbage")


def registered(name: str, endpoint: Path) -> Registration:
    return Registration(name=name, endpoint=str(endpoint), hooks=frozenset({"PreCreateContainer"}))


async def looked(watch: HookWatch) -> None:
    """One look at each, however long that takes."""
    ended = asyncio.Semaphore(0)

    async def find(path: Path, *, hello: bytes) -> str:
        try:
            return await find_silence(path, hello=hello)
        finally:
            ended.release()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hookwatch, "find_silence", find)
        looking = asyncio.create_task(watch.keep_looking())
        for _ in watch.silences():
            await ended.acquire()
        looking.cancel()
        await asyncio.wait([looking])


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def test_a_server_that_greets_answers_and_one_that_is_not_there_does_not(sockets: Path) -> None:
    async def body() -> None:
        watch = HookWatch()
        async with HookServer(sockets / "a.sock"):
            watch.use((registered("10.json", sockets / "a.sock"), registered("20.json", sockets / "b.sock")))
            await looked(watch)
        silences = watch.silences()
        assert silences["10.json"] == ""
        assert str(sockets / "b.sock") in silences["20.json"]

    run(body())


def test_a_server_that_only_lets_connect_does_not_answer(sockets: Path) -> None:
    async def body() -> None:
        watch = HookWatch()
        with socket.socket(socket.AF_UNIX) as hung:  # listens, and never accepts
            hung.bind(str(sockets / "hung.sock"))
            hung.listen()
            watch.use((registered("10.json", sockets / "hung.sock"),))
            await looked(watch)
        assert str(sockets / "hung.sock") in watch.silences()["10.json"]

    run_simulated(body())


def test_who_was_not_looked_at_yet_does_not_answer(sockets: Path) -> None:
    async def body() -> None:
        watch = HookWatch()
        watch.use((registered("10.json", sockets / "a.sock"),))
        assert watch.silences()["10.json"]

    run(body())


def test_a_question_that_failed_outweighs_a_greeting_until_one_succeeds(sockets: Path) -> None:
    async def body() -> None:
        watch = HookWatch()
        async with HookServer(sockets / "a.sock"):
            watch.use((registered("10.json", sockets / "a.sock"),))
            watch.answered("10.json", FAILURE)
            await looked(watch)
            assert watch.silences() == {"10.json": "garbage"}
            watch.answered("10.json", None)
            assert watch.silences() == {"10.json": ""}

    run(body())


def test_a_failure_is_forgotten_after_a_while(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        watch = HookWatch()
        async with HookServer(sockets / "a.sock"):
            watch.use((registered("10.json", sockets / "a.sock"),))
            watch.answered("10.json", FAILURE)
            await looked(watch)
        monkeypatch.setattr(hookwatch, "REMEMBER_S", -1.0)
        assert watch.silences() == {"10.json": ""}

    run(body())


def test_only_what_is_registered_learns_of(sockets: Path) -> None:
    async def body() -> None:
        watch = HookWatch()
        watch.use((registered("10.json", sockets / "a.sock"),))
        watch.use((registered("20.json", sockets / "b.sock"),))
        watch.answered("10.json", FAILURE)
        assert list(watch.silences()) == ["20.json"]

    run(body())
