"""Compare the cached pods with the runtime's lists: at the start, and regularly, because calls may bypass the proxy.

Tests: tests/unit/runtimeproxy/test_gate.py
"""

import asyncio
from typing import Final

from lading.errors import RuntimeUnavailableError
from lading.log import Event, Log
from lading.runtime import RuntimeClient
from runtimeproxy.call.sandbox_cache import SandboxCache

# The lists are read at this interval, in seconds, to find calls that bypassed the proxy.
RELIST_S: Final = 60.0
# The lists are read at this interval, in seconds, while the runtime does not answer.
RELIST_RETRY_S: Final = 1.0


class Relist:
    def __init__(self, cache: SandboxCache, runtime: RuntimeClient, log: Log) -> None:
        self.tried = asyncio.Event()  # set after the first attempt, successful or not
        self.done = asyncio.Event()  # set after the first success
        self.problem = "not asked yet"
        self._cache = cache
        self._runtime = runtime
        self._log = log

    async def keep(self) -> None:
        """Update the cache from the runtime's lists, every RELIST_S seconds. Never returns."""
        while True:
            mark = self._cache.mark()
            try:
                self._cache.relist(mark, await self._runtime.list_sandboxes(), await self._runtime.list_containers())
            except RuntimeUnavailableError as e:
                self.problem = e.message
                self._log.debug(Event.RUNTIME_UNREACHABLE, str(e))
                self.tried.set()
                await asyncio.sleep(RELIST_RETRY_S)
                continue
            self.problem = ""
            if not self.done.is_set():
                self._log.info(Event.PODS_KNOWN, sandboxes=len(self._cache), containers=self._cache.containers)
                self.tried.set()
                self.done.set()
            await asyncio.sleep(RELIST_S)
