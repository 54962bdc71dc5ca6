import os
import signal

import pytest

from lading.stopping import stop_asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_asks_to_stop(number: signal.Signals) -> None:
    asked = stop_asked()
    assert not asked.is_set()
    os.kill(os.getpid(), number)
    await asked.wait()
