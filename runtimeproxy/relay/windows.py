"""Flow control of requests where the relay sends bytes of its own (RFC 9113 5.2 and 6.9).

For frames that merely pass, the client's window *is* the runtime's: WINDOW_UPDATEs pass too, and there is nothing to do. Two
things break that. Bytes of a held message are taken from the client (and credited to it at once, by the relay), and the message
is forwarded later, perhaps larger or smaller, as bytes that the client never sent. So a `Window` keeps how much window the
runtime really has, and how much of the runtime's credit is for the relay's own bytes and must not reach the client.
"""

from lading.http2.frames import LARGEST_WINDOW, ErrorCode, MalformedError


class Window:
    """The runtime's window for a connection or a stream, as the relay sees it. In bytes of DATA payload with padding."""

    __slots__ = ("owed", "room")

    def __init__(self, room: int) -> None:
        self.room = room  # below zero after the runtime shrank INITIAL_WINDOW_SIZE (6.9.2)
        self.owed = 0  # credit still to come for bytes that the relay, not the client, sent

    def passed(self, size: int) -> None:
        """Count bytes of the client that were sent to the runtime."""
        self.room -= size

    def sent(self, size: int) -> None:
        """Count bytes of the relay's own that were sent to the runtime."""
        self.room -= size
        self.owed += size

    def credited(self, increment: int) -> int:
        """Add credit from the runtime; return how much of it is the client's."""
        if increment == 0:
            raise MalformedError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.room + increment > LARGEST_WINDOW:
            raise MalformedError(ErrorCode.FLOW_CONTROL_ERROR, f"window of {self.room + increment} bytes")
        self.room += increment
        withheld = min(increment, self.owed)
        self.owed -= withheld
        return increment - withheld
