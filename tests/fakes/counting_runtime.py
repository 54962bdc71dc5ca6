"""A runtime that counts every request that it got, by its bytes, and holds back the answers of one method until told.

For questions of the kind "was this call lost, or made twice": each request of a test carries bytes of its own. Lists are empty.
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
