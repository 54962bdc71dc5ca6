"""Run work that blocks, each piece in a new daemon thread, awaited on the loop.

`asyncio.to_thread` is not used: an executor's thread that hangs in a driver would delay the end of the process. A thread
that entered a pod's network namespace would be used again for other work.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(do: Callable[[], T]) -> T:
    """Run `do` in a thread, and return its result or raise its exception. If the awaiting task is cancelled, the thread ends by
    itself, and its result is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(deliver: Callable[[], None]) -> None:
        if not done.done():  # the awaiting task may have been cancelled
            deliver()

    def work() -> None:
        try:
            result = do()
        except BaseException as e:  # noqa: BLE001 - passed to the awaiting task
            deliver = partial(done.set_exception, e)
        else:
            deliver = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, deliver)

    threading.Thread(target=work, name="in_thread", daemon=True).start()
    return await done
