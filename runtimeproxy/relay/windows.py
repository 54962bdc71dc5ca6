"""Track the runtime's window for requests while the relay sends bytes of its own (RFC 9113 5.2 and 6.9).

While frames merely pass, WINDOW_UPDATEs included, the client's window *is* the runtime's. A held message breaks that. The relay
credits its bytes to the client at once, and sends the message later, perhaps larger or smaller, as bytes of the relay's own. So
a `Window` counts the runtime's real window, and the credit for the relay's own bytes, which must not reach the client. Example:
the relay sends 100 bytes of its own; of the runtime's next credit of 150 bytes, the client gets 50.
"""

from lading.http2.frames import LARGEST_WINDOW, ErrorCode, MalformedFrameError


class Window:
    """Count the runtime's window of a connection or a stream, in bytes of DATA payload with padding."""

    __slots__ = ("owed", "room")

    def __init__(self, room: int) -> None:
        self.room = room  # below zero after the runtime shrank INITIAL_WINDOW_SIZE (6.9.2)
        self.owed = 0  # expected credit for bytes that the relay, not the client, sent

    def passed(self, size: int) -> None:
        """Count bytes of the client that were sent to the runtime."""
        self.room -= size

    def sent(self, size: int) -> None:
        """Count bytes of the relay's own that were sent to the runtime."""
        self.room -= size
        self.owed += size

    def credited(self, increment: int) -> int:
        """Add credit from the runtime; return the client's part of it."""
        if increment == 0:
            raise MalformedFrameError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.room + increment > LARGEST_WINDOW:
            raise MalformedFrameError(ErrorCode.FLOW_CONTROL_ERROR, f"window of {self.room + increment} bytes")
        self.room += increment
        withheld = min(increment, self.owed)
        self.owed -= withheld
        return increment - withheld
