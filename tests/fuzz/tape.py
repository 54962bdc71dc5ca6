"""A fuzz input, read as choices: any bytes are some choices, and behind its end every choice is the first."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.byte() % len(choices)]

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def stream(self, newest: int) -> int:
        """Choose a stream, mostly one of the newest."""
        back = self.byte()
        return max(0, newest - 2 * (back & 3)) if back < 0xF0 else back & 0xF

    def rest(self) -> bytes:
        return self.take(len(self._data))
