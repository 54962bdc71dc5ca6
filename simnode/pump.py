"""Copy bytes from one socket to another until either ends; then shut both down."""

import contextlib
import socket


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy from `source` to `sink`. Blocks: use one thread for each direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    shut(source)
    shut(sink)


def shut(end: socket.socket) -> None:
    """Wake all threads that wait in the socket, which close(2) alone does not do. May be called twice."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
