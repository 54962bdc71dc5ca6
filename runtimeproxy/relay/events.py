"""Define the events of the relay: a call is held, has ended or was cancelled, or the connection broke.

Tests: tests/unit/runtimeproxy/relay/test_connection.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lading.http2.frames import ErrorCode
from lading.http2.messages import parse_prefix
from runtimeproxy.relay.message import joined


class Side(StrEnum):
    CLIENT = "client"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class CallHeld:
    """Report that the message of a held call is complete. `Relay.forward` or `Relay.refuse` ends the hold, now or later."""

    stream: int
    path: bytes
    parts: Sequence[bytes | bytearray]  # parts of the message, the first with the prefix
    encoding: bytes
    deadline: float | None  # time on the relay's clock at which the caller gives up
    traceparent: str

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def compressed(self) -> bool:
        return parse_prefix(self.parts[0])[0]

    @property
    def message(self) -> bytes:
        """Return a copy of the message with its prefix, perhaps compressed (see message.unpack)."""
        return joined(self.parts)


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Report the runtime's answer to a call that was forwarded with `observe`."""

    stream: int
    status: int
    reply: bytes  # reply with its prefix; empty for an error


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """Report that the side `by` ended a held or observed call early. The call cannot be answered any more."""

    stream: int
    by: Side


RelayEvent = CallHeld | CallEnded | CallCancelled


@dataclass(frozen=True, slots=True)
class Broken:
    by: Side
    code: ErrorCode
    message: str
