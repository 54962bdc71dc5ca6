"""Simulate a runtime that counts its requests by their bytes, and can hold back the answers of one method.

Tests check by the counts that no call was lost or made twice: each request has different bytes. Lists are empty.
"""

import threading
from collections import Counter
from pathlib import Path
from typing import Final

from tests.fakes.raw_server import Call, RawServer

COUNTED: Final = "/runtime.v1.RuntimeService/Version"
HELD: Final = "/runtime.v1.RuntimeService/ExecSync"


class CountingRuntime(RawServer):
    def __init__(self, path: Path, *, workers: int = 64) -> None:
        super().__init__(path, self._answer, workers=workers)
        self.got: Counter[bytes] = Counter()
        self.arrived = threading.Semaphore(0)  # released by each held call
        self.release = threading.Event()
        self._lock = threading.Lock()

    def stop(self) -> None:
        self.release.set()
        super().stop()

    def _answer(self, call: Call) -> bytes:
        if call.path in (COUNTED, HELD):
            with self._lock:
                self.got[call.request] += 1
        if call.path == HELD:
            self.arrived.release()
            self.release.wait()
        return b""
