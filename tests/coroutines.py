"""Let tests and fixtures be coroutines: a pytest plugin. A test and its fixtures share one event loop, new for each test.

The mark `simulated_time` gives a test a loop whose clock moves only while all tasks wait (tests/fakes/simulated_time.py). The
fixture `loop_factory` makes the loop; a folder overrides the fixture to have simulated time in all of its tests.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Final

import pytest

from tests.fakes.simulated_time import SimulatedLoop

TIMEOUT_S: Final = 120  # seconds; a coroutine that waits for ever fails alone, and its traceback shows where it waits

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    return SimulatedLoop if request.node.get_closest_marker("simulated_time") else asyncio.new_event_loop


@pytest.fixture
def runner(loop_factory: LoopFactory) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        yield runner


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.fixturenames.insert(0, "runner")  # fixtures end in the reverse order, and the loop after all of them


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    function: Callable[..., Any] = fixturedef.func

    def in_loop(**arguments: Any) -> Iterator[Any]:
        runner: asyncio.Runner = request.getfixturevalue("runner")
        if inspect.iscoroutinefunction(function):
            yield runner.run(function(**arguments))
            return
        values = function(**arguments)
        yield runner.run(_next(values))
        with contextlib.suppress(StopAsyncIteration):
            runner.run(_next(values))

    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        fixturedef.func = in_loop  # type: ignore[misc]
    try:
        return (yield)
    finally:
        fixturedef.func = function  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner: Any = pyfuncitem.funcargs["runner"]
    runner.run(_bounded(pyfuncitem.obj(**arguments)))
    return True


async def until(true: Callable[[], bool]) -> None:
    """Let other tasks run until the condition is true."""
    while not true():  # noqa: ASYNC110  a fake has no event to wait for; the test's time is bounded
        await asyncio.sleep(0)


async def _bounded(test: Coroutine[Any, Any, None]) -> None:
    simulated = isinstance(asyncio.get_running_loop(), SimulatedLoop)
    async with asyncio.timeout(None if simulated else TIMEOUT_S):
        await test


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values)
