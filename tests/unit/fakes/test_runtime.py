import asyncio

import pytest

from hooks.model.lists import ContainerState, Lists
from lading.errors import RuntimeUnavailableError
from tests.fakes.runtime import FakeRuntime


async def test_sandboxes_and_containers_have_the_states_of_cri() -> None:
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


async def test_a_list_is_of_the_moment_of_its_call() -> None:
    runtime = FakeRuntime()
    runtime.pause()
    asked = asyncio.create_task(runtime.lists())
    await asyncio.sleep(0)
    runtime.run("pod-1")
    assert not asked.done()
    runtime.go_on()
    assert (await asked).sandboxes == ()


async def test_a_runtime_that_is_down_is_unavailable() -> None:
    runtime = FakeRuntime()
    runtime.down = True
    with pytest.raises(RuntimeUnavailableError):
        await runtime.lists()
