"""Read the API server repeatedly, in a thread, for the duration of a `with` block."""

import threading
from typing import Self

from simnode.kube_api import KubeError


class Looking:
    def __init__(self, *, every_s: float) -> None:
        # Looks that were complete; the API server may be away for a while, and a test may want that.
        self.checks = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.scan()
            except KubeError:
                continue
            self.checks += 1

    def scan(self) -> None:
        raise NotImplementedError
