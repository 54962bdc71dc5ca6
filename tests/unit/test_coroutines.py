"""Test that tests and fixtures may be coroutines, and that a failure in them counts."""

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture
async def task() -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(asyncio.sleep(3600))
    yield task
    task.cancel()


@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
async def test_a_coroutine_that_fails_is_a_failed_test() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def test_a_test_runs_in_the_loop_of_its_fixtures(task: asyncio.Task[None]) -> None:
    assert task.get_loop() is asyncio.get_running_loop()
    assert not task.done()


@pytest.mark.simulated_time
async def test_hours_of_simulated_time_pass_at_once() -> None:
    await asyncio.sleep(24 * 3600)
    assert asyncio.get_running_loop().time() == 24 * 3600


def test_a_test_that_is_no_coroutine_has_fixtures_that_are(task: asyncio.Task[None], runner: asyncio.Runner) -> None:
    assert task.get_loop() is runner.get_loop()
