import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest


@pytest.fixture
@asynccontextmanager
async def loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    yield loop
    assert loop.is_running()


async def test_a_fixture_that_is_a_context_is_entered_in_the_loop_of_the_test(loop: asyncio.AbstractEventLoop) -> None:
    assert loop is asyncio.get_running_loop()


@pytest.mark.simulated_time
async def test_hours_of_simulated_time_pass_at_once() -> None:
    await asyncio.sleep(24 * 3600)
    assert asyncio.get_running_loop().time() == 24 * 3600


def test_a_coroutine_that_raises_fails_its_test(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("async def test_a(): assert False\n\nasync def test_b(): assert True\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.coroutines", "-p", "no:cacheprovider", "-q", str(test)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in outcome.stdout
