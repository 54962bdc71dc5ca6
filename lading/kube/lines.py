"""Split a watch's bytes into lines. Pure. Refuses a line that is longer than any object."""

from collections.abc import Iterator
from typing import Final

from lading.kube.errors import MalformedError

# etcd accepts requests of 1.5 MiB; the same object as JSON is a few times as long at most.
MAX_LINE: Final = 16 << 20


class Lines:
    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that `data` completes, without line ends. Empty lines are left out."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._limit:
            raise MalformedError(f"cannot read a watch: a line of more than {self._limit >> 20} MiB")
        for part in rest:
            line = b"".join(self._parts)
            self._parts, self._size = [part], len(part)
            if line:
                yield line
