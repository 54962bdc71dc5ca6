"""Run tests that are coroutine functions, each in an event loop of its own.

A fixture whose value is an asynchronous context manager is entered in the test's loop, and the test gets what `as` would give.
Fixtures for all tests (autouse) are entered first, then the test's own in the order of its parameters.

    @pytest.fixture
    @asynccontextmanager
    async def server() -> AsyncIterator[Server]: ...

    async def test_a_server_answers(server: Server) -> None: ...

The marker `simulated_time` gives the test a loop whose clock moves only while all tasks wait (tests/fakes/simulated_time.py).
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

import pytest

from tests.fakes.simulated_time import SimulatedLoop

TIMEOUT_S: Final = 120  # seconds; a coroutine that waits for ever fails alone, and its traceback shows where it waits


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    simulated = pyfuncitem.get_closest_marker("simulated_time") is not None
    with asyncio.Runner(loop_factory=SimulatedLoop if simulated else None) as runner:
        runner.run(_call(pyfuncitem, timeout_s=None if simulated else TIMEOUT_S))
    return True


async def _call(test: pytest.Function, *, timeout_s: float | None) -> None:
    fixtures = dict(test.funcargs)
    async with asyncio.timeout(timeout_s), AsyncExitStack() as contexts:
        for name, value in fixtures.items():
            if isinstance(value, AbstractAsyncContextManager):
                fixtures[name] = await contexts.enter_async_context(value)
        await test.obj(**{name: fixtures[name] for name in inspect.signature(test.obj).parameters})


async def until(true: Callable[[], bool]) -> None:
    """Let other tasks run until the condition is true."""
    while not true():  # noqa: ASYNC110  a fake has no event to wait for; the test's time is bounded
        await asyncio.sleep(0)
