"""Bytes from one socket to another, until either ends; both are shut down then."""

import contextlib
import socket


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Blocks: one thread for each direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    shut(source)
    shut(sink)


def shut(end: socket.socket) -> None:
    """Wakes whoever waits in it, in another thread too, which close(2) alone does not. May be called twice."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
