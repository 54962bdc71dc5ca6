"""Join one client connection and one runtime connection frame by frame (RFC 9113), and hold some calls.

    client ──receive_from_client──▶ ┌───────┐ ──to_runtime──▶ runtime
           ◀──────to_client──────── │ Relay │ ◀──receive_from_runtime──
                                    └───────┘ ──events──▶ CallHeld, CallEnded, CallCancelled
                                        ▲──────── forward(stream), refuse(stream)

Every frame is forwarded unchanged, with these exceptions:

* A call whose `:path` is in `held_paths` is held. Its HEADERS are forwarded in order, so that the runtime's deadline runs and
  its HPACK table equals the client's. Its DATA are kept until the message is complete (holding.py), which `CallHeld` reports.
  `forward` sends the message, changed or not; `refuse` resets the call at the runtime and answers the client. If the client
  gives up, or the runtime answers first, `CallCancelled` reports the end of the hold. A hold ends in no other way.
* DATA beyond the runtime's window are queued (flow.py); they occur only after the relay sent bytes of its own.
* WINDOW_UPDATEs of the runtime for bytes that the relay sent are withheld (stream.py).
* Further frames of either side on a refused call are dropped, and their credit is given back (refused.py).
* Header blocks are re-encoded once a block had to be dropped (headers.py).
* The relay's own frames for the client wait until the runtime's SETTINGS came.

Malformed framing or header compression ends the connection: `broken` is set, and the client gets GOAWAY. The receiver of a
complete frame checks whether its *meaning* is valid.
"""

from collections.abc import Callable, Collection
from typing import Final

from lading.http2 import frames, messages
from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields
from lading.http2.messages import GrpcStatus
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.direction import Direction
from runtimeproxy.relay.events import Broken, CallCancelled, CallEnded, RelayEvent, Side
from runtimeproxy.relay.flow import Flow
from runtimeproxy.relay.holding import Holding
from runtimeproxy.relay.refused import Refused
from runtimeproxy.relay.stream import Hold, Step, Stream, Trailers, Waiting

# containerd refuses a request of more bytes.
MAX_MESSAGE: Final = 16 << 20
# This many bytes of an observed reply are enough, because it carries one id.
MAX_OBSERVED: Final = 64 << 10
# The relay sends this PING after a GOAWAY: a client that answers the PING opens no more calls.
_END_PING: Final = b"lading\x00\x01"


class Relay:
    """Relay one pair of connections. Not thread-safe. `changed` is called when output appears without a call of a method."""

    def __init__(
        self,
        *,
        held_paths: Collection[bytes],
        budget: HoldBudget,
        clock: Callable[[], float],
        changed: Callable[[], object] = lambda: None,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.held_paths = held_paths  # replaced when registrations change; open calls are not affected
        self.events: list[RelayEvent] = []
        self.broken: Broken | None = None
        self._preface = frames.PREFACE
        self._streams: dict[int, Stream] = {}
        self._open: dict[int, bool] = {}  # open calls by stream; True once reply headers went to the client
        self._last_stream = 0
        self._greeted = False  # the runtime's SETTINGS came: the client gets nothing before (RFC 9113 3.4)
        self._goaway_stream = frames.LARGEST_WINDOW  # stream of the last GOAWAY; the next may not name a later one (6.8)
        self._begun = False
        self._end_acknowledged = False
        self._requests = Direction(
            self._meet_request,
            {
                frames.DATA: self._request_data,
                frames.RST_STREAM: self._request_rst,
                frames.SETTINGS: self._request_settings,
                frames.PING: self._request_ping,
                frames.WINDOW_UPDATE: self._request_window_update,
            },
        )
        self._replies = Direction(
            self._meet_reply,
            {
                frames.DATA: self._reply_data,
                frames.RST_STREAM: self._reply_rst,
                frames.SETTINGS: self._reply_settings,
                frames.WINDOW_UPDATE: self._reply_window_update,
                frames.GOAWAY: self._reply_goaway,
            },
            cuts_through=lambda stream: self._greeted and stream not in self._streams,
        )
        self._flow = Flow(self._requests, self._replies, self._streams, budget)
        self._holding = Holding(self._flow, budget, clock=clock, changed=changed, max_message=max_message)
        self._refused = Refused(self._requests, self._streams)

    # ---- methods for the link

    @property
    def begun(self) -> bool:
        """Return whether the client's preface is complete: its 24 bytes and its SETTINGS (RFC 9113 3.4)."""
        return self._begun

    @property
    def open_calls(self) -> int:
        return len(self._open)

    def receive_from_client(self, data: bytes) -> None:
        if self.broken:
            return
        try:
            if self._preface:
                self._preface, taken = frames.read_preface(self._preface, data)
                self._requests.out.append(data[:taken])
                data = data[taken:]
            self._requests.pump(data)
        except MalformedFrameError as e:
            self._break(Side.CLIENT, e)

    def receive_from_runtime(self, data: bytes) -> None:
        if self.broken:
            return
        try:
            self._replies.pump(data)
        except MalformedFrameError as e:
            self._break(Side.RUNTIME, e)

    def to_client(self) -> bytes:
        """Return the bytes for the client since the last call."""
        if not self._greeted:
            return b""
        return self._replies.take()

    def to_runtime(self) -> bytes:
        """Return the new bytes for the runtime, or else the next part of the queued bytes (`more_to_runtime`)."""
        self._flow.next_burst()
        return self._requests.take()

    @property
    def more_to_runtime(self) -> bool:
        """Return whether queued bytes wait for the next `to_runtime`, and not for credit of the runtime."""
        return self._flow.more

    def take_events(self) -> list[RelayEvent]:
        events, self.events = self.events, []
        return events

    def forward(self, stream_id: int, message: bytes | None = None, *, observe: bool = False) -> bool:
        """Forward a held message unchanged, or `message` (without prefix) in its place. Return False if the call is over."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.allows(Step.FORWARD) or self.broken:
            return False
        held = stream.received.parts if message is None else (messages.prefix_of(message), message)
        stream.observe = observe
        self._requests.out.append(self._holding.send_on(stream, held))
        return True

    def refuse(self, stream_id: int, status: int, message: str) -> bool:
        """End a held call with an error for its caller. Return False if the call is over."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.allows(Step.REFUSE) or self.broken:
            return False
        try:
            self._requests.out.append(self._refuse(stream, status, message))
        except MalformedFrameError as e:
            self._break(Side.CLIENT, e)
        return True

    def announce_end(self) -> None:
        """Send GOAWAY, so that the client opens no more calls here. Calls that it opened before it read GOAWAY continue."""
        self._send_goaway(frames.LARGEST_WINDOW, ErrorCode.NO_ERROR)
        self._replies.inject(frames.frame(frames.PING, 0, 0, _END_PING))

    @property
    def ended(self) -> bool:
        """Return whether, after `announce_end`, the client has acknowledged the end and no call is open."""
        return self._end_acknowledged and not self._open

    def end(self, message: str) -> None:
        """End every open call with UNAVAILABLE and `message`, then the connection."""
        if self.broken:
            return
        for stream_id, answered in list(self._open.items()):
            render = messages.trailers if answered else messages.trailers_only
            self._replies.inject(
                self._replies.render_block(stream_id, render(GrpcStatus.UNAVAILABLE, message), end_stream=True)
            )
        self._break(Side.RUNTIME, MalformedFrameError(ErrorCode.NO_ERROR, message))

    # ---- the end of the connection

    def _break(self, by: Side, error: MalformedFrameError) -> None:
        self.broken = Broken(by, error.code, str(error))
        for stream in list(self._streams.values()):
            if stream.allows(Step.REFUSE) or stream.observe:
                self.events.append(CallCancelled(stream.id, by))
            self._holding.drop(stream)
        self._streams.clear()
        self._flow.end()
        self._open.clear()
        # An error of the runtime is not reported as an error of the client.
        code = error.code if by is Side.CLIENT or error.code is ErrorCode.NO_ERROR else ErrorCode.INTERNAL_ERROR
        if not self._greeted:
            self._greeted = True
            self._replies.out.insert(0, frames.frame(frames.SETTINGS, 0, 0))
        self._send_goaway(self._last_stream, code, str(error))

    def _send_goaway(self, last_stream: int, code: ErrorCode, text: str = "") -> None:
        self._goaway_stream = min(self._goaway_stream, last_stream)
        self._replies.inject(frames.goaway(self._goaway_stream, code, text))

    # ---- client → runtime

    def _meet_request(self, stream_id: int, fields: Fields, end_stream: bool) -> bytes | None:
        """Process a request's header block. Return None to forward it now, or the bytes to send in its place."""
        if stream_id > self._last_stream:
            self._last_stream = stream_id
            self._open[stream_id] = False
            path = next((value for name, value in fields if name == b":path"), b"")
            path = path if path[:1] == b"/" else b"/" + path  # grpc-go accepts a path without the slash too
            if path in self.held_paths and not end_stream:
                self._streams[stream_id] = self._holding.begin(stream_id, path, fields)
            return None
        stream = self._streams.get(stream_id)
        if stream is None or (stream.hold is Hold.PASSING and not stream.queue):
            return None
        if stream.hold is Hold.REFUSED:
            self._refused.client_sent(stream, end_stream=end_stream)
            return b""
        stream.queue.append(Trailers(fields, end_stream))  # trailers, which no gRPC client sends
        cut_short = end_stream and stream.hold is Hold.RECEIVING
        instead = self._holding.send_on(stream, stream.received.parts) if cut_short else b""
        stream.client_ended = stream.client_ended or end_stream
        return instead

    def _request_data(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        length = end - start - frames.HEADER_LENGTH
        self._flow.came(length)
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._flow.passes(length):
                return None
            stream = self._streams[stream_id] = Stream(stream_id, Hold.PASSING)
        begin, stop = frames.unpadded(buffer, flags, start + frames.HEADER_LENGTH, end)
        end_stream = bool(flags & frames.END_STREAM)
        match stream.hold:
            case Hold.RECEIVING:
                return self._receive(stream, buffer[begin:stop], length, end_stream)
            case Hold.HELD:
                self._holding.receive_behind(stream, buffer[begin:stop], length, end_stream=end_stream)
                return b""
            case Hold.REFUSED:
                self._flow.credit_client(0, length)
                self._refused.client_sent(stream, end_stream=end_stream)
                return b""
            case Hold.PASSING:
                if not stream.queue and self._flow.passes(length, stream.window):
                    return None
                padding = length - (stop - begin)
                if padding:
                    self._flow.credit_client(0, padding)
                    self._flow.credit_client(stream_id, padding)
                stream.queue.append(Waiting(buffer[begin:stop], own=False, end_stream=end_stream))
                return self._flow.send(stream)

    def _receive(self, stream: Stream, payload: bytes, length: int, end_stream: bool) -> bytes:
        if problem := self._holding.receive(stream, payload, length, end_stream=end_stream):
            return self._refuse(stream, GrpcStatus.RESOURCE_EXHAUSTED, problem)
        if stream.whole:
            self.events.append(self._holding.hold(stream))
        elif end_stream:
            return self._holding.send_on(stream, stream.received.parts)  # the message is incomplete: the runtime refuses it
        return b""

    def _refuse(self, stream: Stream, status: int, message: str) -> bytes:
        self._holding.drop(stream)
        stream.queue.clear()
        stream.take(Step.REFUSE)
        render = messages.trailers if self._open.pop(stream.id, False) else messages.trailers_only
        self._replies.inject(self._replies.render_block(stream.id, render(status, message), end_stream=True))
        if not stream.client_ended:
            self._replies.inject(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))  # RFC 9113 8.1
        return self._refused.add(stream)

    def _request_rst(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        stream = self._streams.get(stream_id)
        if stream and stream.hold is Hold.REFUSED:
            self._refused.client_sent(stream, end_stream=True)
            return b""
        self._cancel(stream_id, Side.CLIENT)
        return None

    def _request_window_update(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        stream = self._streams.get(stream_id)
        return b"" if stream and stream.hold is Hold.REFUSED else None

    def _request_settings(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        if flags & frames.ACK:
            acknowledged = self._replies.unacknowledged.popleft() if self._replies.unacknowledged else None
            if acknowledged:
                if frames.HEADER_TABLE_SIZE in acknowledged:
                    self._requests.lane.acknowledge_table_size(acknowledged[frames.HEADER_TABLE_SIZE])
                if behind := self._flow.acknowledged(acknowledged):
                    return buffer[start:end] + behind
            return None
        changed = frames.settings(buffer[start + frames.HEADER_LENGTH : end])
        self._begun = True
        self._announced(self._requests, self._replies, changed)
        return None

    def _request_ping(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        if flags & frames.ACK and buffer[start + frames.HEADER_LENGTH : end] == _END_PING:
            self._end_acknowledged = True
            return b""
        return None

    def _announced(self, by: Direction, about: Direction, changed: dict[int, int]) -> None:
        """Apply SETTINGS sent in direction `by`: they say what their sender accepts in the other direction, `about`."""
        if frames.HEADER_TABLE_SIZE in changed:
            about.lane.announce_table_size(changed[frames.HEADER_TABLE_SIZE])
        by.unacknowledged.append(changed)
        about.reader.max_frame_size = max(about.reader.max_frame_size, changed.get(frames.MAX_FRAME_SIZE, 0))

    # ---- runtime → client

    def _meet_reply(self, stream_id: int, fields: Fields, end_stream: bool) -> bytes | None:
        stream = self._streams.get(stream_id)
        if stream:
            if stream.hold is Hold.REFUSED:
                return b""
            if end_stream and stream.observe:
                self.events.append(CallEnded(stream_id, messages.parse_status(fields), bytes(stream.reply)))
                stream.observe = False
        if end_stream:
            self._answered(stream_id)
        elif stream_id in self._open:
            self._open[stream_id] = True
        return None

    def _reply_data(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if flags & frames.END_STREAM:
                self._over(stream_id)
            return None
        if stream.hold is Hold.REFUSED:
            length = end - start - frames.HEADER_LENGTH
            if length:  # the client never gets these bytes, so the relay gives the credit
                self._requests.out.append(frames.window_update(0, length))
            return b""
        if stream.observe and len(stream.reply) < MAX_OBSERVED:
            begin, stop = frames.unpadded(buffer, flags, start + frames.HEADER_LENGTH, end)
            stream.reply += buffer[begin:stop]
        if flags & frames.END_STREAM:
            self._answered(stream_id)  # a reply without trailers is not gRPC and has no status
        return None

    def _reply_rst(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        stream = self._streams.get(stream_id)
        if stream and stream.hold is Hold.REFUSED:
            return b""
        self._cancel(stream_id, Side.RUNTIME)
        return None

    def _reply_window_update(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        return self._flow.credited(stream_id, frames.unsigned(buffer, start + frames.HEADER_LENGTH))

    def _reply_settings(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        if flags & frames.ACK:
            if not self._requests.unacknowledged:
                return None
            acknowledged = self._requests.unacknowledged.popleft()
            if acknowledged is None:
                self._refused.barrier_reached()
                return b""
            if frames.HEADER_TABLE_SIZE in acknowledged:
                self._replies.lane.acknowledge_table_size(acknowledged[frames.HEADER_TABLE_SIZE])
            return None
        changed = frames.settings(buffer[start + frames.HEADER_LENGTH : end])
        self._announced(self._replies, self._requests, changed)
        self._flow.count_on_stream_window()
        if self._greeted:
            return None
        self._greeted = True
        self._flow.greeted()
        self._replies.out.insert(0, buffer[start:end])
        return b""

    def _reply_goaway(self, buffer: bytes, flags: int, stream_id: int, start: int, end: int) -> bytes | None:
        if end - start < frames.HEADER_LENGTH + 8:
            raise MalformedFrameError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY too short")
        last = frames.unsigned(buffer, start + frames.HEADER_LENGTH)
        self._goaway_stream = min(self._goaway_stream, last)
        for unprocessed in [s for s in self._open if s > last]:  # the client tries unprocessed calls again elsewhere
            self._cancel(unprocessed, Side.RUNTIME)
        return None

    # ---- the end of a call

    def _answered(self, stream_id: int) -> None:
        """End a call that the runtime has answered completely, even if it is still held. Waiting bytes of the request are not
        sent, and the stream is reset at the runtime. Otherwise the runtime would wait for the request's end forever, or
        receive the end after a gap."""
        stream = self._streams.get(stream_id)
        if stream and (stream.queue or stream.received):
            self._requests.out.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        self._cancel(stream_id, Side.RUNTIME)

    def _cancel(self, stream_id: int, by: Side) -> None:
        """End a call; if it was held or observed, report it as cancelled."""
        stream = self._streams.get(stream_id)
        if stream:
            self._give_up(stream, by)
        self._over(stream_id)

    def _give_up(self, stream: Stream, by: Side) -> None:
        if stream.allows(Step.REFUSE) or stream.observe:
            self.events.append(CallCancelled(stream.id, by))
        stream.observe = False
        self._holding.drop(stream)
        stream.take(Step.CANCEL)

    def _over(self, stream_id: int) -> None:
        self._open.pop(stream_id, None)
        stream = self._streams.pop(stream_id, None)
        if stream:
            self._flow.drop(stream)
