"""Track calls that the relay refused, until neither side sends anything more on them.

A refused call is reset at the runtime, which may have answered before it read the reset. Therefore the relay also sends a
*barrier*: a SETTINGS frame of its own, whose ACK follows all frames that the runtime still sent. (A PING would not do: grpc-go
ends a connection after a few.) One barrier is open at a time; it covers the calls that were refused before it.
"""

from typing import Final

from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedFrameError
from runtimeproxy.relay.direction import Direction
from runtimeproxy.relay.stream import Stream

# This many refused calls may be without an end. Real clients end their side with the message.
MAX_REFUSED: Final = 1000


class Refused:
    def __init__(self, requests: Direction, streams: dict[int, Stream]) -> None:
        """Create an empty list. `streams` are the relay's; a call that both sides have ended is removed from them."""
        self.calls: set[int] = set()
        self._requests = requests
        self._streams = streams
        self._barrier: set[int] = set()  # the calls that the open barrier covers

    def add(self, stream: Stream) -> bytes:
        """Add a refused call. Return the frames for the runtime."""
        self.calls.add(stream.id)
        if len(self.calls) > MAX_REFUSED:
            raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"{MAX_REFUSED} refused calls without an end")
        reset = frames.rst_stream(stream.id, ErrorCode.CANCEL)
        return reset if self._barrier else reset + self._raise_barrier()

    def client_sent(self, stream: Stream, *, end_stream: bool) -> None:
        stream.client_ended = stream.client_ended or end_stream
        self._forget(stream)

    def barrier_reached(self) -> None:
        covered, self._barrier = self._barrier, set()
        for stream_id in covered:
            stream = self._streams[stream_id]
            stream.runtime_ended = True
            self._forget(stream)
        if any(not self._streams[s].runtime_ended for s in self.calls):
            self._requests.out.append(self._raise_barrier())

    def _raise_barrier(self) -> bytes:
        self._barrier = {s for s in self.calls if not self._streams[s].runtime_ended}
        self._requests.unacknowledged.append(None)
        return frames.frame(frames.SETTINGS, 0, 0)

    def _forget(self, stream: Stream) -> None:
        if stream.client_ended and stream.runtime_ended:
            self._streams.pop(stream.id, None)
            self.calls.discard(stream.id)
