"""One address in front of several ports of this machine, as a Service without a proxy's health checks: each new connection goes
to the next one that answers.

Honest: bytes go through as they come, a connection stays with the port that took it, and nobody is asked whether it is ready.
"""

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Service:
    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = targets
        self._turns = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _shut(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._join, args=[near], daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        turn = next(self._turns)
        for port in [self._targets[(turn + n) % len(self._targets)] for n in range(len(self._targets))]:
            with contextlib.suppress(OSError):
                far = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=_pump, args=[far, near], daemon=True).start()
                _pump(near, far)
                return
        _shut(near)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    """Wakes whoever waits in it, in another thread too, which close(2) alone does not."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
