"""The one event loop of every grpc.aio peer, on a thread of its own: grpc.aio with several loops logs errors of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aio-peers")
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """From any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
