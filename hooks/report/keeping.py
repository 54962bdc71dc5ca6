"""Keep an object of the API server equal to the node's state: connect, check repeatedly, and wait longer after each failure.

Tests: tests/unit/hooks/report/test_reporter.py
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from lading.errors import LadingError
from lading.kube.backoff import Backoff
from lading.kube.errors import KubeError

T = TypeVar("T")


async def keep_scanning(
    connect: Callable[[], AbstractAsyncContextManager[T]],
    scan: Callable[[T], Awaitable[float]],
    failed: Callable[[Exception], float],
    sleep: Callable[[float], Any],
) -> None:
    """Call `scan` repeatedly until cancelled. Never returns. `scan` and `failed` return the seconds until the next call."""
    while True:
        try:
            async with connect() as api:
                while True:
                    await sleep(await scan(api))
        except Exception as e:  # noqa: BLE001  no credentials yet, or any error of a kubeconfig's plugin
            await sleep(failed(e))


def describe(error: Exception) -> str:
    """Return the text of the error, with its type unless it is a LadingError."""
    return str(error) if isinstance(error, LadingError) else f"{type(error).__name__}: {error}"


def wait_after(error: Exception, backoff: Backoff) -> float:
    """Return the seconds to wait after this error, but at least as long as the API server requested (Retry-After)."""
    return backoff.failed(at_least_s=error.retry_after_s if isinstance(error, KubeError) else 0.0)
