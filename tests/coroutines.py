"""Let tests and fixtures be coroutines: a pytest plugin. A test and its fixtures share one event loop, new for each test.

The fixture `loop_factory` makes the loop; a folder or a file overrides the fixture for simulated time.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


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
    runner.run(pyfuncitem.obj(**arguments))
    return True


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values)
