import asyncio
import threading
from functools import partial

import pytest

from lading.threads import in_thread


async def test_the_result_of_the_work_is_returned_also_none() -> None:
    for result in (7, None):
        assert await in_thread(partial(next, iter([result]))) == result


async def test_an_error_goes_to_the_awaiting_task_with_its_cause() -> None:
    class GoneError(BaseException):
        pass

    def work() -> None:
        raise GoneError from OSError(5, "the cause")

    with pytest.raises(GoneError) as e:
        await in_thread(work)
    assert isinstance(e.value.__cause__, OSError)


async def test_each_piece_of_work_has_a_daemon_thread_of_its_own() -> None:
    threads = [await in_thread(threading.current_thread) for _ in range(3)]
    assert len(set(threads)) == 3
    assert all(thread.daemon and thread is not threading.main_thread() for thread in threads)


def test_work_that_hangs_holds_neither_the_loop_nor_its_end() -> None:
    """Check that a result which arrives after its caller gave up is dropped."""
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(30)
        ended.set()
        raise OSError

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await in_thread(work)
        assert await in_thread(lambda: 1) == 1

    asyncio.run(give_up())
    gate.set()
    assert ended.wait(30)
