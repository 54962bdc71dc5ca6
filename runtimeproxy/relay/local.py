"""Answer a client by the proxy itself, when no runtime is available.

The client gets a proper HTTP/2 server (SETTINGS, so that it does not fall into dial back-off) that ends each call with
UNAVAILABLE as soon as the call begins, and then sends GOAWAY. A local connection cannot be joined to a runtime later, so the
client dials again.
"""

from lading.http2 import frames, messages
from lading.http2.connection import Connection, Stream
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane
from lading.http2.messages import GrpcStatus


class LocalAnswer(Connection[Stream]):
    def __init__(self, message: str) -> None:
        """Create the proxy's end, with SETTINGS in `out`. `message` says why the runtime is not available."""
        super().__init__(preface=frames.PREFACE)
        self.done = False  # GOAWAY was sent: the connection is to be closed
        self._refusal = HeaderLane().render(messages.trailers_only(GrpcStatus.UNAVAILABLE, message))
        self.greet({}, credit=0)

    def receive(self, data: bytes) -> bytes:
        if self.done:
            return b""
        try:
            answer = super().receive(data)
        except MalformedFrameError as e:
            return self.end(e.code)
        return answer + self.end() if self.last_stream else answer

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
        """Return the last bytes: a call was answered, the runtime is back, or the client sent malformed bytes."""
        self.done = True
        self.out.append(frames.goaway(self.last_stream, code))
        return self.take()

    def accept(self, stream_id: int, fields: Fields) -> None:
        if stream_id > self.last_stream:
            self.last_stream = stream_id
            self.send_block(stream_id, self._refusal, end_stream=True)
            self.out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
