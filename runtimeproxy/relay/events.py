"""What the relay tells its shell: a call is held, has ended, or is over before its end; and how a connection broke."""

from dataclasses import dataclass
from enum import StrEnum

from runtimeproxy.relay.frames import ErrorCode


class Side(StrEnum):
    CLIENT = "client"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class CallHeld:
    """The message of a held call is whole. Answer with `forward` or `refuse`, now or later."""

    stream: int
    path: bytes
    message: bytes | bytearray  # with its prefix, perhaps compressed: messages.unpack
    encoding: bytes
    deadline: float | None  # on the relay's clock, when the caller gives up
    traceparent: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The runtime answered a call that was forwarded with `observe`."""

    stream: int
    status: int
    reply: bytes  # with its prefix; empty for an error


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """A held or observed call is over before its end: `by` whom. Nothing may be answered any more."""

    stream: int
    by: Side


RelayEvent = CallHeld | CallEnded | CallCancelled


@dataclass(frozen=True, slots=True)
class Broken:
    by: Side
    code: ErrorCode
    message: str
