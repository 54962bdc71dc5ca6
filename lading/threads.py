"""Work that blocks, each piece in a fresh daemon thread, awaited on the loop.

Not `asyncio.to_thread`: a thread of an executor that hangs in a driver would hold the end of the process up, and a thread that
entered a pod's network namespace would be used again for something else.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(do: Callable[[], T]) -> T:
    """What `do` returns or raises. Whoever awaits may be cancelled; the thread then ends by itself, and nobody is told."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(deliver: Callable[[], None]) -> None:
        if not done.done():  # cancelled meanwhile
            deliver()

    def work() -> None:
        try:
            result = do()
        except BaseException as e:  # noqa: BLE001 - goes to whoever awaits
            deliver = partial(done.set_exception, e)
        else:
            deliver = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, deliver)

    threading.Thread(target=work, name="in_thread", daemon=True).start()
    return await done
