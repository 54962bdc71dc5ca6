"""Receive the message of a call until it is complete, keep it until the call is decided, then forward or drop it.

The connection's credit is given back at once, so that no other call waits for this one. Only credit for a request's last frame
may wait for the end of the call (flow.py). The stream's credit is given back once memory is reserved (budget.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lading.http2 import messages
from lading.http2.headers import Fields
from lading.http2.messages import PREFIX_LENGTH
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.events import CallHeld
from runtimeproxy.relay.flow import Flow
from runtimeproxy.relay.message import Received
from runtimeproxy.relay.stream import Hold, Step, Stream, Waiting

OVER_BUDGET: Final = "lading: too many large requests at a time"


@dataclass(slots=True)
class Holding:
    flow: Flow
    budget: HoldBudget
    clock: Callable[[], float]
    changed: Callable[[], object]  # called when memory for a message was reserved, and credit was given to its client
    max_message: int  # bytes

    def begin(self, stream_id: int, path: bytes, headers: Fields) -> Stream:
        """Begin to hold a call: the relay keeps its DATA from now on."""
        stream = Stream(stream_id, Hold.RECEIVING, path=path, headers=headers, opened_at=self.clock())
        self.flow.open_windows(stream)
        return stream

    def receive(self, stream: Stream, payload: bytes, length: int, *, end_stream: bool) -> str:
        """Receive bytes of an incomplete message; `length` includes padding. Return why the message cannot be held, or an
        empty text."""
        self.flow.came_held(stream, length)
        stream.received.add(payload)
        stream.client_ended = stream.client_ended or end_stream
        stream.uncredited += length
        if end_stream:
            self.flow.credit_later(length)
        else:
            self.flow.credit_client(0, length)
        expected_before = stream.expected
        stream.read_prefix()
        if stream.expected - PREFIX_LENGTH > self.max_message:
            return messages.too_large(stream.expected - PREFIX_LENGTH, self.max_message)
        if stream.expected and not expected_before:
            self._reserve(stream)
        if not stream.reserved:
            stream.early += length
            if not self.budget.came_early(length, stream.early):
                return OVER_BUDGET
        if not end_stream and (stream.reserved or not stream.expected):  # a stream window may be smaller than the prefix
            self.flow.credit_received(stream)
        return ""

    def receive_behind(self, stream: Stream, payload: bytes, length: int, *, end_stream: bool) -> None:
        """Receive bytes after a complete message: the stream gets no credit for bytes that belong to no message."""
        self.flow.came_held(stream, length)
        self.flow.credit_client(0, length)
        stream.queue.append(Waiting(payload, own=True, end_stream=end_stream))
        stream.client_ended = stream.client_ended or end_stream

    def hold(self, stream: Stream) -> CallHeld:
        """Hold a call whose message is complete. Return its event."""
        behind = stream.received.cut(stream.expected)
        if behind or stream.client_ended:
            stream.queue.appendleft(Waiting(behind, own=True, end_stream=stream.client_ended))
        stream.take(Step.COMPLETE)
        return stream.call()

    def send_on(self, stream: Stream, held: Sequence[bytes | bytearray]) -> bytes:
        """Forward the message `held`, in parts, perhaps changed. Return the bytes that fit in the runtime's window now."""
        first = stream.queue[0] if stream.queue else None
        cut_short = stream.hold is Hold.RECEIVING
        end_stream = cut_short and stream.client_ended
        if isinstance(first, Waiting) and not first.remaining and first.end_stream:
            stream.queue.popleft()  # END_STREAM is sent with the message
            end_stream = True
        going = Waiting(*held, own=True, end_stream=end_stream)
        stream.queue.appendleft(going)
        self._let_go(stream)
        self.flow.keep_reserved(stream, going.remaining)  # the reservation lasts until all bytes are sent
        stream.take(Step.CUT_SHORT if cut_short else Step.FORWARD)
        return self.flow.send(stream)

    def drop(self, stream: Stream) -> None:
        """Release the held bytes and the reservation of a stream. Idempotent."""
        self._let_go(stream)
        self.flow.keep_reserved(stream, 0)
        self.flow.credit_client(0)

    def _let_go(self, stream: Stream) -> None:
        if stream.granted:
            self.budget.withdraw(stream.granted)
            stream.granted = None
        self._forget_early(stream)
        stream.received = Received()

    def _reserve(self, stream: Stream) -> None:
        def granted() -> None:
            self._reserved(stream, cost)
            self.flow.credit_received(stream)
            self.changed()

        cost = self.budget.cost(stream.expected)
        stream.granted = granted
        if self.budget.reserve(cost, granted):
            self._reserved(stream, cost)

    def _reserved(self, stream: Stream, size: int) -> None:
        stream.granted = None
        stream.reserved = size
        self._forget_early(stream)

    def _forget_early(self, stream: Stream) -> None:
        early, stream.early = stream.early, 0
        self.budget.allow_early(early)
