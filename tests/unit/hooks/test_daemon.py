import asyncio
import os
import signal

import pytest

from hooks.daemon import asked_or_failed
from lading.stopping import stop_asked


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon(number: signal.Signals) -> None:
    async def run() -> None:
        background = asyncio.create_task(forever())
        ending = asyncio.create_task(asked_or_failed(stop_asked(), [background]))
        os.kill(os.getpid(), number)
        await ending
        assert not background.done()
        background.cancel()

    asyncio.run(asyncio.wait_for(run(), 5))


def test_so_does_background_work_that_fails() -> None:
    """A node that releases nothing any more, and says nothing, is worse than one that systemd starts again."""

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await asked_or_failed(asyncio.Event(), [asyncio.create_task(fail())])

    asyncio.run(asyncio.wait_for(run(), 5))
