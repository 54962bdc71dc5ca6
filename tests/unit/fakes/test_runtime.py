import asyncio

import pytest

from hooks.model.lists import ContainerState, Lists
from lading.errors import RuntimeUnavailableError
from tests.fakes.runtime import FakeRuntime


def test_states_are_those_of_a_runtime() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        sandbox = runtime.run("pod-1")
        dies, lives = runtime.create(sandbox, "train"), runtime.create(sandbox, "side")
        runtime.stop(sandbox, but=lives)
        listed = await runtime.lists()
        assert [(one.pod, one.ready) for one in listed.sandboxes] == [("pod-1", False)]
        states = {one.id: one.state for one in listed.containers}
        assert states == {dies: ContainerState.EXITED, lives: ContainerState.RUNNING}
        runtime.remove(sandbox)
        assert await runtime.lists() == Lists()

    asyncio.run(run())


def test_an_answer_is_of_the_moment_of_the_question() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        runtime.pause()
        asked = asyncio.create_task(runtime.lists())
        await asyncio.sleep(0)
        runtime.run("pod-1")
        assert not asked.done()
        runtime.go_on()
        assert (await asked).sandboxes == ()

    asyncio.run(run())


def test_down() -> None:
    async def run() -> None:
        runtime = FakeRuntime()
        runtime.down = True
        with pytest.raises(RuntimeUnavailableError):
            await runtime.lists()

    asyncio.run(run())
