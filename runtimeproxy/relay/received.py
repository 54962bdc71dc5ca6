"""Keep the bytes of a message as they came, in parts of a bounded size, so that megabytes are neither copied nor moved at once.
A part takes payloads until it has `PART` bytes, so that a message in one-byte frames is not a million parts.
"""

from collections.abc import Sequence
from typing import Final

from lading.http2.messages import PREFIX_LENGTH, parse_prefix

# A large message is copied this many bytes at a time, because a C call holds the GIL until it returns.
PART: Final = 64 << 10


def joined(pieces: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """Return `b"".join(pieces)`. For a megabyte or more it copies in parts, so that other threads run meanwhile."""
    if sum(map(len, pieces)) < 1 << 20:
        return b"".join(pieces)
    views = (memoryview(piece) for piece in pieces)
    return b"".join([bytes(view[at : at + PART]) for view in views for at in range(0, len(view), PART)])


class Received:
    __slots__ = ("_size", "parts")

    def __init__(self) -> None:
        self.parts: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, payload: bytes) -> None:
        if not self.parts or len(self.parts[-1]) >= PART:
            self.parts.append(bytearray())
        self.parts[-1] += payload
        self._size += len(payload)

    def prefix(self) -> tuple[bool, int] | None:
        """Return (compressed, length of the message after the prefix), or None while the prefix is incomplete. A prefix is
        never split between parts."""
        return parse_prefix(self.parts[0]) if self._size >= PREFIX_LENGTH else None

    def cut(self, size: int) -> bytes:
        """Remove and return the bytes after the first `size`. They came with the last payload."""
        behind = bytearray()
        while self.parts and self._size - len(self.parts[-1]) >= size:
            last = self.parts.pop()
            self._size -= len(last)
            behind = last + behind
        if excess := self._size - size:
            behind = self.parts[-1][-excess:] + behind
            del self.parts[-1][-excess:]
            self._size = size
        return bytes(behind)
