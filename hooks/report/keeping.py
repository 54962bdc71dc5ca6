"""Keep an object of the API server as the node has it: connect, look again and again, and wait longer after each failure.

Tests: tests/unit/hooks/report/test_reporter.py
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from lading.errors import LadingError
from lading.kube.backoff import Backoff
from lading.kube.errors import KubeError

T = TypeVar("T")


async def keep_looking(
    connect: Callable[[], AbstractAsyncContextManager[T]],
    look: Callable[[T], Awaitable[float]],
    failed: Callable[[Exception], float],
    sleep: Callable[[float], Any],
) -> None:
    """Look until cancelled. Never returns. `look` and `failed` return after how many seconds to look again."""
    while True:
        try:
            async with connect() as api:
                while True:
                    await sleep(await look(api))
        except Exception as e:  # noqa: BLE001  no credentials yet, or whatever a kubeconfig's plugin comes up with
            await sleep(failed(e))


def describe(error: Exception) -> str:
    """Return the error in words: with its type, if it is none of Lading's."""
    return str(error) if isinstance(error, LadingError) else f"{type(error).__name__}: {error}"


def wait_after(error: Exception, backoff: Backoff) -> float:
    """Return the seconds to wait after this error; the API server may have said how many at least."""
    return backoff.failed(at_least_s=error.retry_after_s if isinstance(error, KubeError) else 0.0)
