"""Delete old periods from the ledger's history, a few at a time, so that no container waits for the deletion.

The clock decides which periods are old. A clock that was just set by a day or more may be wrong, and deleted rows cannot be
restored. So for REST_S after such a change, only rows over the history's limit are deleted.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from hooks.ledger.history import History
from hooks.node.node_log import NodeLog
from lading.errors import StateError
from lading.log import Event

SCAN_S: Final = 60.0
PAUSE_S: Final = 0.05  # seconds between two steps, which gives 4,000 rows a second
REST_S: Final = 86400.0
_DAY_S: Final = 86400
_NOT_FORGOTTEN: Final = "the history is not pruned"


async def keep_forgetting(
    history: History,
    *,
    days: int,
    node_log: NodeLog,
    clock: Callable[[], float],
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = asyncio.sleep,
) -> None:
    """Delete old rows until cancelled; never returns. `clock` is Unix time in seconds."""
    ahead, rests_until = clock() - monotonic(), monotonic()
    while True:
        more, was, ahead = False, ahead, clock() - monotonic()
        if abs(ahead - was) >= _DAY_S:
            rests_until = monotonic() + REST_S
        try:
            more = history.prune(int(clock()) - days * _DAY_S if monotonic() >= rests_until else 0)
            node_log.over(Event.LEDGER_FAILED, _NOT_FORGOTTEN)
        except StateError as e:  # such as a full disk, which the daemon also reports as a failed condition
            node_log.once(Event.LEDGER_FAILED, f"{_NOT_FORGOTTEN}: {e}")
        await sleep(PAUSE_S if more else SCAN_S)
