"""Make one gRPC call again and again over HTTP/2 connections, with low overhead and without a gRPC library.

grpcio spends more CPU on a call than the runtime and the relay together, so on a machine with two cores it would measure
itself. This client sends the frames of a gRPC client: HEADERS from its HPACK table and DATA in one write, acknowledgements of
SETTINGS and PING, credit for received DATA. It raises an error for any status but OK, a reset, a GOAWAY, and the connection's
end.
"""

import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpack import Encoder

from lading.errors import HostError
from lading.http2 import frames
from lading.http2.headers import HeaderLane
from lading.http2.messages import GrpcStatus, parse_status, prefixed

WINDOW: Final = 4 << 20  # the window that grpc-go and C-core reach by themselves for answers of some megabytes
_READ: Final = 1 << 18
_TIMEOUT_S: Final = 60.0


class Caller:
    """Call one method with one request over one connection."""

    def __init__(self, path: Path, method: str, request: bytes) -> None:
        self._method = method
        self._headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("user-agent", "lading-bench"),
            ("te", "trailers"),
        ]
        self._message = prefixed(request)
        self._encoder = Encoder()
        self._lane = HeaderLane()
        self._reader = frames.FrameReader()
        self._began: dict[int, float] = {}
        self._out: list[bytes] = []
        self._next = 1
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.connect(str(path))
        window = frames.frame(frames.SETTINGS, 0, 0, b"\x00\x04" + WINDOW.to_bytes(4))
        self._socket.sendall(frames.PREFACE + window + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW))

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self, calls: int = 1) -> None:
        """Begin a call. The next `flush` sends it."""
        for _ in range(calls):
            self._began[self._next] = time.perf_counter()
            self._out.append(frames.header_block(self._next, self._encoder.encode(self._headers), end_stream=False))
            self._out.append(frames.frame(frames.DATA, frames.END_STREAM, self._next, self._message))
            self._next += 2

    def flush(self) -> None:
        if self._out:
            self._socket.sendall(b"".join(self._out))
            self._out.clear()

    def receive(self) -> list[float]:
        """Read once. Return how many seconds each call took that this read completed."""
        data = self._socket.recv(_READ)
        if not data:
            raise HostError(f"cannot measure {self._method}: the other side closed the connection")
        buffer, now, credit = self._reader.feed(data), time.perf_counter(), 0
        took = []
        for kind, flags, stream, start, end in self._reader.frames(buffer):
            payload = start + frames.HEADER_LENGTH
            match kind:
                case frames.DATA:
                    credit += end - payload
                case frames.HEADERS:
                    fields = self._lane.decode(frames.block_fragment(buffer, flags, payload, end))
                    if flags & frames.END_STREAM:
                        if parse_status(fields) != GrpcStatus.OK:
                            raise HostError(f"cannot measure {self._method}: it answered {fields}")
                        took.append(now - self._began.pop(stream))
                case frames.SETTINGS | frames.PING if not flags & frames.ACK:
                    content = buffer[payload:end] if kind == frames.PING else b""
                    self._out.append(frames.frame(kind, frames.ACK, 0, content))
                case frames.RST_STREAM if stream not in self._began:
                    pass  # C-core's servers close a stream this way after their answer
                case frames.RST_STREAM | frames.GOAWAY:
                    raise HostError(f"cannot measure {self._method}: the other side ended it with {buffer[start:end]!r}")
        if credit:
            self._out.append(frames.window_update(0, credit))
        return took


def run_calls(callers: Sequence[Caller], calls: int, *, at_a_time: int = 1) -> list[float]:
    """Make `calls` calls, `at_a_time` on each connection. Return the seconds that each took, in the order in which they
    ended."""
    took: list[float] = []
    begun = 0
    for caller in callers:
        caller.begin(at_a_time)
        caller.flush()
        begun += at_a_time
    ready: Sequence[Caller] = callers
    by_descriptor = {caller.fileno(): caller for caller in callers}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    with poll:
        while len(took) < calls:
            if len(callers) > 1:
                ready = [by_descriptor[descriptor] for descriptor, _ in poll.poll()]
            for caller in ready:
                ended = caller.receive()
                took += ended
                more = min(len(ended), calls - begun)
                caller.begin(more)
                begun += more
                caller.flush()
    return took
