"""Relay TCP to a port of this machine, and close and reopen it in a test, as if the server stopped and returned.

Bytes are passed unchanged, so TLS is between client and server. A closed relay refuses connections, and ends the open ones.
"""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from simnode.service import pump, shut


class Doorway:
    def __init__(self, target: int) -> None:
        self._target = target
        self._listener: socket.socket | None = None
        self._ends: list[socket.socket] = []
        self.port = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self) -> None:
        """Close the relay and its connections. May be called twice."""
        ends, self._ends = self._ends, []
        for end in [*filter(None, [self._listener]), *ends]:
            shut(end)
        self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=[one, other], daemon=True).start()
