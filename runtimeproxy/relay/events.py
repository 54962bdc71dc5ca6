"""The events of the relay: a call is held, has ended, or was cancelled; and how a connection broke."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lading.http2.frames import ErrorCode
from lading.http2.messages import parse_prefix
from runtimeproxy.relay.received import joined


class Side(StrEnum):
    CLIENT = "client"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class CallHeld:
    """The message of a held call is complete. Answer with `forward` or `refuse`, now or later."""

    stream: int
    path: bytes
    parts: Sequence[bytes | bytearray]  # of the message
    encoding: bytes
    deadline: float | None  # on the relay's clock, when the caller gives up
    traceparent: str

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def compressed(self) -> bool:
        return parse_prefix(self.parts[0])[0]

    @property
    def message(self) -> bytes:
        """Return a copy with its prefix, perhaps compressed: see compression.unpack."""
        return joined(self.parts)


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The runtime answered a call that was forwarded with `observe`."""

    stream: int
    status: int
    reply: bytes  # with its prefix; empty for an error


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """A held or observed call is over before its end, because of `by`. Nothing may be answered any more."""

    stream: int
    by: Side


RelayEvent = CallHeld | CallEnded | CallCancelled


@dataclass(frozen=True, slots=True)
class Broken:
    by: Side
    code: ErrorCode
    message: str
