"""Run the proxy as it is installed, with a heartbeat in its event loop: `python -m bench.heartbeat FILE …`, with the arguments
of `lading-runtimeproxy` behind the file.

The loop is asked to come back every millisecond; how late it is at the worst is how long it stood still, for whatever reason:
work on the loop, another thread that holds the interpreter, garbage collection, or a machine that gave the process no CPU.
SIGUSR1 writes the longest delay since the last time, in seconds, to the file and begins anew.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from runtimeproxy.main import main

EVERY_S: Final = 0.001


class Beat:
    def __init__(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        self._loop = loop
        self._file = file
        self._due = time.perf_counter()
        self._longest_s = 0.0
        loop.add_signal_handler(signal.SIGUSR1, self._write)
        loop.call_soon(self._strike)

    def _strike(self) -> None:
        now = time.perf_counter()
        self._longest_s = max(self._longest_s, now - self._due)
        self._due = now + EVERY_S
        self._loop.call_later(EVERY_S, self._strike)

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(repr(self._longest_s))
        fresh.replace(self._file)
        self._longest_s = 0.0


class BeatingPolicy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self._beat_file = file

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        Beat(loop, self._beat_file)
        return loop


def read_stall_s(pid: int, file: Path, *, patience_s: float = 5.0) -> float:
    """Return the longest delay of that process, in seconds, since the last request."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + patience_s
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} wrote no {file}")
        time.sleep(EVERY_S)
    return float(file.read_text())


if __name__ == "__main__":
    asyncio.set_event_loop_policy(BeatingPolicy(Path(sys.argv[1])))
    main(sys.argv[2:])
