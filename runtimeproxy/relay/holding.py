"""The message of a held call: taken from the client until it is whole, kept while somebody decides, then sent on or dropped.

Enters: the DATA of a call that is to be held, as it comes. Leaves: its message whole, as `CallHeld`; DATA for the runtime once
it goes on, and credit for the client. The connection's goes back at once, so that no other call waits for this one; the
stream's once the message's room is reserved (budget.py). Refuses: a message that is larger than any that may be held.
"""

from collections.abc import Callable, Sequence
from typing import Final

from lading.http2 import messages
from lading.http2.headers import Fields
from lading.http2.messages import PREFIX_LENGTH
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.events import CallHeld
from runtimeproxy.relay.flow import Flow
from runtimeproxy.relay.received import Received
from runtimeproxy.relay.stream import Hold, Stream, Waiting

NO_ROOM: Final = "lading: too many large requests at a time"


class Holding:
    def __init__(
        self,
        flow: Flow,
        budget: HoldBudget,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        max_message: int,
    ) -> None:
        """`changed` is called when room for a message was found, and with it credit for its client."""
        self._flow = flow
        self._budget = budget
        self._clock = clock
        self._changed = changed
        self._max_message = max_message

    def begin(self, stream_id: int, path: bytes, headers: Fields) -> Stream:
        """A call whose DATA are taken."""
        stream = Stream(stream_id, Hold.RECEIVING, path=path, headers=headers, opened_at=self._clock())
        self._flow.open_windows(stream)
        return stream

    def receive(self, stream: Stream, payload: bytes, length: int, *, end_stream: bool) -> str:
        """Takes bytes of a message that is not whole yet; `length` is theirs with padding. Why it can not be held, if so."""
        self._flow.came_held(stream, length)
        stream.received.add(payload)
        stream.client_ended = stream.client_ended or end_stream
        stream.uncredited += length
        self._flow.credit_client(0, length)
        known = stream.expected
        stream.read_prefix()
        if stream.expected - PREFIX_LENGTH > self._max_message:
            return messages.too_large(stream.expected - PREFIX_LENGTH, self._max_message)
        if stream.expected and not known:
            self._reserve(stream)
        if not stream.reserved:
            stream.early += length
            if not self._budget.came_early(length, stream.early):
                return NO_ROOM
        if stream.reserved or not stream.expected:  # a window may be smaller than the prefix
            self._flow.credit_received(stream)
        return ""

    def receive_behind(self, stream: Stream, payload: bytes, length: int, *, end_stream: bool) -> None:
        """Behind a whole message: no credit on the stream for what nobody asked for."""
        self._flow.came_held(stream, length)
        self._flow.credit_client(0, length)
        stream.queue.append(Waiting(payload, own=True, end_stream=end_stream))
        stream.client_ended = stream.client_ended or end_stream

    def hold(self, stream: Stream) -> CallHeld:
        """Once its message is whole."""
        behind = stream.received.cut(stream.expected)
        if behind or stream.client_ended:
            stream.queue.appendleft(Waiting(behind, own=True, end_stream=stream.client_ended))
        stream.hold = Hold.HELD
        return stream.call()

    def send_on(self, stream: Stream, held: Sequence[bytes | bytearray]) -> bytes:
        """`held`: the parts of the message, which may be another by now. What the runtime has room for at once."""
        first = stream.queue[0] if stream.queue else None
        end_stream = stream.hold is Hold.RECEIVING and stream.client_ended
        if isinstance(first, Waiting) and not first.left and first.end_stream:
            stream.queue.popleft()  # END_STREAM rides on the message
            end_stream = True
        going = Waiting(*held, own=True, end_stream=end_stream)
        stream.queue.appendleft(going)
        self._let_go(stream)
        self._flow.keep_reserved(stream, going.left)  # until the runtime has taken it
        stream.hold = Hold.PASSING
        return self._flow.send(stream)

    def drop(self, stream: Stream) -> None:
        """Nothing of it is held any more, or waits to be. Again is fine."""
        self._let_go(stream)
        self._flow.keep_reserved(stream, 0)

    def _let_go(self, stream: Stream) -> None:
        if stream.granted:
            self._budget.withdraw(stream.granted)
            stream.granted = None
        self._no_longer_early(stream)
        stream.received = Received()

    def _reserve(self, stream: Stream) -> None:
        def granted() -> None:
            self._reserved(stream, cost)
            self._flow.credit_received(stream)
            self._changed()

        cost = self._budget.cost(stream.expected)
        stream.granted = granted
        if self._budget.reserve(cost, granted):
            self._reserved(stream, cost)

    def _reserved(self, stream: Stream, size: int) -> None:
        stream.granted = None
        stream.reserved = size
        self._no_longer_early(stream)

    def _no_longer_early(self, stream: Stream) -> None:
        early, stream.early = stream.early, 0
        self._budget.no_longer_early(early)
