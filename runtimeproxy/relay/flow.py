"""Control the flow of requests: the client's credit, the runtime's window, and the DATA that wait for it (RFC 9113 5.2).

The client gets the runtime's credit for frames that merely pass, and the relay's credit for DATA that the relay keeps
(stream.py). The relay itself refuses DATA beyond a window if the runtime does not receive them.
"""

from typing import Final

from lading.http2 import frames
from lading.http2.frames import ErrorCode, MalformedFrameError
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.direction import Bytes, Direction
from runtimeproxy.relay.stream import Hold, Stream, Trailers, Waiting, Window

# The runtime gets this many bytes of waiting DATA at a time; other connections have their turn before the next.
MAX_BURST: Final = 256 << 10
# Credit for this many bytes may wait for the end of a call: the client has three quarters of its window meanwhile.
MAX_LATER: Final = frames.DEFAULT_WINDOW // 4


class Flow:
    def __init__(self, requests: Direction, replies: Direction, streams: dict[int, Stream], budget: HoldBudget) -> None:
        """Create flow control. `streams` are the relay's; a stream is removed once its frames merely pass again."""
        self._budget = budget
        self.more = False  # queued bytes wait for the next burst, not for the runtime's window
        self._requests = requests
        self._replies = replies
        self._streams = streams
        self._queued: dict[int, Stream] = {}
        self._burst = MAX_BURST  # bytes left of the current burst
        self._connection = Window(frames.DEFAULT_WINDOW)
        self._client_credit = frames.DEFAULT_WINDOW  # bytes that the client may still send on the connection
        self._later = 0  # connection credit for the client that is sent when a call ends
        self._deferred_credit: int | None = 0  # connection credit that waits for the runtime's SETTINGS; None after them
        self._acknowledged_window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW  # bytes that the relay may send on a new stream
        self._client_stream_window = frames.DEFAULT_WINDOW  # bytes that the client may send on a new stream

    # ---- the client's DATA

    def open_windows(self, stream: Stream) -> None:
        """Set the windows of a new call whose DATA the relay keeps."""
        stream.window = Window(self._stream_window)
        stream.client_credit = self._client_stream_window

    def came(self, length: int) -> None:
        self._client_credit -= length
        if self._client_credit < 0:
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")

    def came_held(self, stream: Stream, length: int) -> None:
        """Count DATA of a held call. Raises MalformedError beyond the stream's window, which bounds a held call's memory."""
        stream.client_credit -= length
        if length and stream.client_credit < 0:  # an empty frame needs no window (6.9)
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"DATA beyond the window of stream {stream.id}")

    def passes(self, length: int, window: Window | None = None) -> bool:
        """Return whether DATA of this length fit now, and count them. `window`: the stream's, if the relay tracks it."""
        if length > self._connection.free or (window and length > window.free):
            return False
        self._connection.free -= length
        if window:
            window.free -= length
        return True

    def credit_client(self, stream_id: int, size: int = 0) -> None:
        if stream_id == 0:
            size, self._later = size + self._later, 0
        if size:
            self._replies.inject(frames.window_update(stream_id, size))
            if stream_id == 0 and self._deferred_credit is None:
                self._client_credit += size
            elif stream_id == 0:
                self._deferred_credit = (self._deferred_credit or 0) + size

    def credit_later(self, size: int) -> None:
        """Give the connection's credit with its next credit or at the end of a call, when the client gets frames anyway."""
        self._later += size
        if self._later > MAX_LATER:
            self.credit_client(0)

    def credit_received(self, stream: Stream) -> None:
        """Give the client the stream's credit for the received bytes of a message that will be held."""
        self.credit_client(stream.id, stream.uncredited)
        stream.client_credit += stream.uncredited
        stream.uncredited = 0

    def greeted(self) -> None:
        """Count credit as given from now on: the runtime's SETTINGS came, so frames reach the client."""
        self._client_credit += self._deferred_credit or 0
        self._deferred_credit = None

    # ---- the runtime's window

    def send(self, stream: Stream) -> bytes:
        """Return the part of the stream's queue that fits in the runtime's window and in the burst."""
        out: list[Bytes] = []
        while stream.queue:
            item = stream.queue[0]
            if isinstance(item, Trailers):
                out.append(self._requests.render_block(stream.id, item.fields, end_stream=item.end_stream))
                stream.queue.popleft()
                continue
            remaining = item.remaining
            free = min(self._connection.free, stream.window.free) if stream.window else self._connection.free
            size = min(remaining, max(0, free), frames.DEFAULT_MAX_FRAME_SIZE)
            if size and self._burst <= 0:
                self.more = True
            if remaining and (not size or self.more):
                self._queued[stream.id] = stream
                return b"".join(out)
            last = size == remaining
            flags = frames.END_STREAM if last and item.end_stream else 0
            if remaining or flags:
                out.append(frames.frame_header(frames.DATA, flags, stream.id, size))
                out += item.take(size)
            for window in (self._connection, stream.window):
                if window:
                    window.sent(size) if item.own else window.passed(size)
            self._burst -= size
            if last:
                stream.queue.popleft()
        self._queued.pop(stream.id, None)
        self.keep_reserved(stream, 0)
        if stream.window is None and not stream.observe:
            del self._streams[stream.id]  # the relay sent no bytes of its own here: frames of the stream pass again
        return b"".join(out)

    def keep_reserved(self, stream: Stream, size: int) -> None:
        """Give the stream's reservation beyond `size` bytes back to the budget."""
        given_back = stream.reserved - min(stream.reserved, size)
        stream.reserved -= given_back
        if given_back:
            self._budget.release(given_back)

    def next_burst(self) -> None:
        if self.more and not self._requests.out:
            self.more = False
            self._send_queued()
        self._burst = MAX_BURST

    def _send_queued(self) -> None:
        for stream in list(self._queued.values()):
            if self._connection.free <= 0 or self.more:
                return
            self._requests.out.append(self.send(stream))

    def credited(self, stream_id: int, increment: int) -> bytes | None:
        """Process a WINDOW_UPDATE of the runtime. Return None to forward it to the client, or the bytes in its place."""
        if stream_id == 0:
            passed = self._connection.credited(increment)
            self._client_credit += passed
            self._send_queued()
        else:
            stream = self._streams.get(stream_id)
            if stream is None or stream.window is None:
                return None
            if stream.hold is Hold.REFUSED:
                return b""
            passed = stream.window.credited(increment)
            stream.client_credit += passed
            if stream.queue and stream.hold is Hold.PASSING:
                self._requests.out.append(self.send(stream))
        if passed == increment:
            return None
        return frames.window_update(stream_id, passed) if passed else b""

    def acknowledged(self, settings: dict[int, int]) -> bytes:
        """Process the client's acknowledgement of settings. Return the bytes to send to the runtime after it."""
        self._acknowledged_window = settings.get(frames.INITIAL_WINDOW_SIZE, self._acknowledged_window)
        if not (self.count_on_stream_window() and self._queued):
            return b""
        return b"".join([self.send(stream) for stream in list(self._queued.values())])

    def count_on_stream_window(self) -> bool:
        """Apply the runtime's INITIAL_WINDOW_SIZE. Return whether streams have more window.

        The relay's own bytes use the smallest value that may be in force. A smaller value counts once the runtime sends it. A
        larger value counts once the client's acknowledgement is forwarded: until then the runtime enforces the old value. The
        client's bytes of held calls, which the relay checks, may use the largest such value.
        """
        sizes = [changed[frames.INITIAL_WINDOW_SIZE] for changed in self._replies.unacknowledged
                 if changed and frames.INITIAL_WINDOW_SIZE in changed]  # fmt: skip
        sizes.append(self._acknowledged_window)
        difference, of_client = min(sizes) - self._stream_window, max(sizes) - self._client_stream_window
        self._stream_window += difference
        self._client_stream_window += of_client
        for stream in self._streams.values():
            if stream.window:
                stream.window.free += difference
                stream.client_credit += of_client
        return difference > 0

    # ---- the end of a call

    def drop(self, stream: Stream) -> None:
        """Drop the stream's waiting bytes, and give the client credit for them, because the runtime never will."""
        self._queued.pop(stream.id, None)
        self.credit_client(
            0, sum(waiting.remaining for waiting in stream.queue if isinstance(waiting, Waiting) and not waiting.own)
        )

    def end(self) -> None:
        self._queued.clear()
