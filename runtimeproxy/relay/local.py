"""Answer a client by the proxy itself, when no runtime is available.

The client gets a proper HTTP/2 server (SETTINGS, so that it does not fall into dial back-off) that ends each call with
UNAVAILABLE and then sends GOAWAY. A local connection cannot be joined to a runtime later; the client dials again.
"""

from typing import Final

from lading.http2 import frames, messages
from lading.http2.frames import ErrorCode, FrameReader, MalformedFrameError
from lading.http2.headers import HeaderLane
from lading.http2.messages import GrpcStatus

_MAX_BLOCK: Final = 1 << 20


class LocalAnswer:
    def __init__(self, message: str) -> None:
        self.begun = False  # the client's preface is complete, with its SETTINGS
        self.done = False  # GOAWAY is queued: the connection is closed once GOAWAY is sent
        self._message = message
        self._reader = FrameReader()
        self._preface = frames.PREFACE
        self._lane = HeaderLane()
        self._out: list[bytes] = [frames.frame(frames.SETTINGS, 0, 0)]
        self._last_stream = 0
        self._block_stream = 0
        self._block_size = 0

    def receive(self, data: bytes) -> None:
        if self.done:
            return
        try:
            self._preface, taken = frames.read_preface(self._preface, data)
            buffer = self._reader.feed(data[taken:])
            answered = [self._frame(buffer, *frame) for frame in self._reader.frames(buffer)]
            if any(answered):
                self.end(ErrorCode.NO_ERROR)
        except MalformedFrameError as e:
            self.end(e.code)

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Finish the connection with GOAWAY: a call was answered, the runtime is back, or the client sent malformed bytes."""
        self._out.append(frames.goaway(self._last_stream, code))
        self.done = True

    def to_client(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _frame(self, buffer: bytes, kind: int, flags: int, stream: int, start: int, end: int) -> bool:
        """Process a frame. Return True when a call was answered. Header blocks are not decoded: their content does not change
        the answer."""
        content = buffer[start + frames.HEADER_LENGTH : end]
        if self._block_stream and (kind != frames.CONTINUATION or stream != self._block_stream):
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        match kind:
            case frames.SETTINGS if not flags & frames.ACK:
                frames.settings(content)
                self.begun = True
                self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
            case frames.PING if not flags & frames.ACK:
                self._out.append(frames.frame(frames.PING, frames.ACK, 0, content))
            case frames.DATA if content:
                self._out.append(frames.window_update(0, len(content)))
            case frames.HEADERS | frames.CONTINUATION:
                if stream == 0:
                    raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
                self._block_size = self._block_size + len(content) if self._block_stream else 0
                if self._block_size > _MAX_BLOCK:
                    raise MalformedFrameError(ErrorCode.ENHANCE_YOUR_CALM, f"header block over {_MAX_BLOCK} bytes")
                self._block_stream = 0 if flags & frames.END_HEADERS else stream
                if not self._block_stream and stream > self._last_stream:
                    self._answer(stream)
                    return True
        return False

    def _answer(self, stream: int) -> None:
        self._last_stream = stream
        block = self._lane.render(messages.trailers_only(GrpcStatus.UNAVAILABLE, self._message))
        self._out.append(frames.header_block(stream, block, end_stream=True))
        self._out.append(frames.rst_stream(stream, ErrorCode.NO_ERROR))
