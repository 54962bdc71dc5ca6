import asyncio
import os
import signal

import pytest

from lading.stopping import stop_asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop(number: signal.Signals) -> None:
    async def run() -> None:
        asked = stop_asked()
        assert not asked.is_set()
        os.kill(os.getpid(), number)
        await asked.wait()

    asyncio.run(asyncio.wait_for(run(), 5))
