import asyncio

import pytest

from lading.errors import RuntimeUnavailableError
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.fakes.runtime import FakeRuntime


def test_states_are_those_of_a_runtime() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        sandbox = runtime.run("pod-1")
        dies, lives = runtime.create(sandbox, "train"), runtime.create(sandbox, "side")
        runtime.stop(sandbox, but=lives)
        (listed,) = await runtime.list_sandboxes()
        assert (listed.metadata.uid, listed.state) == ("pod-1", cri.SANDBOX_NOTREADY)
        states = {c.id: c.state for c in await runtime.list_containers()}
        assert states == {dies: cri.CONTAINER_EXITED, lives: cri.CONTAINER_RUNNING}
        runtime.remove(sandbox)
        assert (await runtime.list_sandboxes(), await runtime.list_containers()) == ((), ())

    asyncio.run(run())


def test_an_answer_is_of_the_moment_of_the_question() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        runtime.pause()
        asked = asyncio.create_task(runtime.list_sandboxes())
        await asyncio.sleep(0)
        runtime.run("pod-1")
        assert not asked.done()
        runtime.go_on()
        assert await asked == ()

    asyncio.run(run())


def test_down() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        runtime.down = True
        for ask in (runtime.list_sandboxes, runtime.list_containers):
            with pytest.raises(RuntimeUnavailableError):
                await ask()

    asyncio.run(run())
