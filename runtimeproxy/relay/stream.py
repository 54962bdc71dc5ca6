"""Hold the relay's state of a stream whose frames do not merely pass: a held, refused, observed or queued call.

While frames merely pass, WINDOW_UPDATEs included, the client's window *is* the runtime's (RFC 9113 5.2 and 6.9). A held message
breaks that. The relay credits its bytes to the client at once, and sends the message later, perhaps larger or smaller, as bytes
of the relay's own. So a `Window` counts the runtime's real window, and the credit for the relay's own bytes, which must not
reach the client. Example: the relay sends 100 bytes of its own; of the runtime's next credit of 150 bytes, the client gets 50.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from lading.http2.frames import LARGEST_WINDOW, ErrorCode, MalformedFrameError
from lading.http2.headers import Fields
from lading.http2.messages import PREFIX_LENGTH, parse_timeout
from runtimeproxy.relay.events import CallHeld
from runtimeproxy.relay.message import Received


class Hold(Enum):
    RECEIVING = "receiving"  # the call's message is not complete yet
    HELD = "held"  # the call's outcome is being decided
    PASSING = "passing"  # decided, or never held: bytes may still wait for the runtime's window
    REFUSED = "refused"  # the relay answered the call; further frames of either side are dropped


class Step(Enum):
    """Represent an event that changes the state of a call."""

    COMPLETE = "complete"  # the last byte of the call's message came
    CUT_SHORT = "cut short"  # the client ended the call within the message: the runtime refuses it
    FORWARD = "forward"
    REFUSE = "refuse"
    CANCEL = "cancel"  # either side cancelled the call, or the runtime answered first


# A call leaves RECEIVING and HELD in exactly one way. A step that is missing here does not occur in that state.
STEPS: Final[Mapping[tuple[Hold, Step], Hold]] = {
    (Hold.RECEIVING, Step.COMPLETE): Hold.HELD,
    (Hold.RECEIVING, Step.CUT_SHORT): Hold.PASSING,
    (Hold.RECEIVING, Step.REFUSE): Hold.REFUSED,
    (Hold.RECEIVING, Step.CANCEL): Hold.PASSING,
    (Hold.HELD, Step.FORWARD): Hold.PASSING,
    (Hold.HELD, Step.REFUSE): Hold.REFUSED,
    (Hold.HELD, Step.CANCEL): Hold.PASSING,
    (Hold.PASSING, Step.CANCEL): Hold.PASSING,
}


class Window:
    """Count the runtime's window of a connection or a stream, in bytes of DATA payload with padding."""

    __slots__ = ("free", "owed")

    def __init__(self, free: int) -> None:
        self.free = free  # below zero after the runtime shrank INITIAL_WINDOW_SIZE (6.9.2)
        self.owed = 0  # expected credit for bytes that the relay, not the client, sent

    def passed(self, size: int) -> None:
        """Count bytes of the client that were sent to the runtime."""
        self.free -= size

    def sent(self, size: int) -> None:
        """Count bytes of the relay's own that were sent to the runtime."""
        self.free -= size
        self.owed += size

    def credited(self, increment: int) -> int:
        """Add credit from the runtime; return the client's part of it."""
        if increment == 0:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.free + increment > LARGEST_WINDOW:
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"window of {self.free + increment} bytes")
        self.free += increment
        withheld = min(increment, self.owed)
        self.owed -= withheld
        return increment - withheld


class Waiting:
    """Hold DATA for the runtime. `own`: the relay sends the bytes as its own, and has already credited the client for them."""

    __slots__ = ("_parts", "end_stream", "own", "remaining")

    def __init__(self, *parts: bytes | bytearray, own: bool, end_stream: bool) -> None:
        self.own = own
        self.end_stream = end_stream
        self.remaining = sum(map(len, parts))  # bytes
        self._parts = deque(memoryview(part) for part in parts)

    def take(self, size: int) -> list[memoryview]:
        """Remove and return the next `size` bytes. A frame may consist of several parts: otherwise small credits would make
        ever smaller frames."""
        taken = []
        self.remaining -= size
        while size:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(part[size:])
            taken.append(part[:size])
            size -= len(taken[-1])
        return taken


@dataclass(slots=True)
class Trailers:
    """Hold a header block that must not overtake the DATA before it."""

    fields: Fields
    end_stream: bool


@dataclass(slots=True)
class Stream:
    id: int
    hold: Hold
    window: Window | None = None  # None: the relay sent no bytes of its own here, so the client's window is the runtime's
    path: bytes = b""
    headers: Fields = ()
    opened_at: float = 0.0
    received: Received = field(default_factory=Received)  # the held message, with its prefix
    expected: int = 0  # length of the held message with its prefix; 0 until the prefix came
    granted: Callable[[], None] | None = None  # callback of a pending reservation
    reserved: int = 0  # bytes of the hold budget
    early: int = 0  # bytes that came before memory for them was reserved
    client_credit: int = 0  # bytes that the client may still send while the call is held
    uncredited: int = 0  # bytes taken for which the client's stream window was not given back yet
    queue: deque[Waiting | Trailers] = field(default_factory=deque)
    client_ended: bool = False  # the client sent END_STREAM or RST_STREAM
    runtime_ended: bool = False
    observe: bool = False
    reply: bytearray = field(default_factory=bytearray)

    def allows(self, step: Step) -> bool:
        return (self.hold, step) in STEPS

    def take(self, step: Step) -> None:
        self.hold = STEPS[self.hold, step]

    @property
    def whole(self) -> bool:
        return self.expected > 0 and len(self.received) >= self.expected

    def read_prefix(self) -> None:
        if not self.expected and (prefix := self.received.prefix()):
            self.expected = PREFIX_LENGTH + prefix[1]

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")

    def call(self) -> CallHeld:
        """Return the event of a call whose message is complete."""
        timeout = parse_timeout(self.header(b"grpc-timeout"))
        return CallHeld(
            stream=self.id,
            path=self.path,
            parts=self.received.parts,  # no longer changed: bytes after the message are queued
            encoding=self.header(b"grpc-encoding"),
            deadline=None if timeout is None else self.opened_at + timeout,
            traceparent=self.header(b"traceparent").decode("ascii", "replace"),
        )
