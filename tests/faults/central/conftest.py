import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.led import Led, led


@pytest.fixture
@asynccontextmanager
async def central(tmp_path: Path) -> AsyncIterator[Led]:
    """Yield central in leadership beside a fake API server; afterwards no task is left."""
    async with led(tmp_path) as central:
        yield central
    assert asyncio.all_tasks() == {asyncio.current_task()}
