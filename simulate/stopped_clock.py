"""Run central's own coroutines to their end while the simulated clock stands still; none of them may wait.

Tests: tests/unit/simulate/test_central_actions.py
"""

from collections.abc import Coroutine
from typing import Any


def complete(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("central waits for something while no time passes")
