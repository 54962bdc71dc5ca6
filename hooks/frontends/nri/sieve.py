"""Read a protobuf message while its bytes arrive, and keep only the needed fields, as a smaller message.

containerd 1.7 lists all pods and containers of the node in one message, and pod authors decide how large it is. Other fields
are skipped without a copy, so that a message of any size takes no more memory than its kept fields. Refused are a message that
is not protobuf (MalformedError), and a message with more than `MAX_KEPT` bytes of needed fields (ExcessError).

Source: protobuf.dev/programming-guides/encoding. Groups, which proto3 lacks, make a message malformed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from lading.errors import LadingError

# Kubelet's messages about a pod or a container have at most 16 MiB each, and an NRI call is about one pod and one container.
MAX_KEPT: Final = 32 << 20
_VARINT_BYTES: Final = 10
_MAX_FIELD: Final = (1 << 29) - 1


class _Kind(IntEnum):
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class MalformedError(LadingError):
    """Report bytes that are not NRI; the connection is unusable from then on."""


class ExcessError(MalformedError):
    """Report a message with more than `MAX_KEPT` bytes of needed fields."""


@dataclass(frozen=True, slots=True)
class Inner:
    """Represent a field that is itself a message, and list the fields to keep of that message."""

    fields: "Fields"


Shrink = Callable[[bytes], bytes]  # returns the kept part of a field's value; raises DecodeError
Fields = Mapping[int, Shrink | Inner]  # fields to keep, by number


@dataclass(slots=True)
class Sieve:
    """Read one message: `feed` its bytes, in parts of any size, then call `kept`. Only `kept` raises an error: the bytes of a
    malformed message are skipped to its end."""

    fields: Fields
    _kept: bytearray = field(default_factory=bytearray)
    _head: bytearray = field(default_factory=bytearray)  # bytes of an incomplete varint: a field's tag, size or number
    _tag: int = -1  # tag of the field whose value is being read; -1: a tag comes next
    _left: int = 0  # bytes of this value that have not arrived
    _value: "bytearray | Sieve | None" = None  # None: the value is skipped
    _error: MalformedError | None = None

    def feed(self, data: memoryview) -> None:
        try:
            at = 0
            while at < len(data) and self._error is None:
                at += self._feed_value(data[at:]) if self._left else self._feed_head(data[at])
        except MalformedError as e:
            self._error = e
            self._kept.clear()
            self._value = None

    def kept(self) -> bytes:
        """Return the smaller message, once the whole message was fed. Raise MalformedError."""
        if self._error is not None:
            raise self._error
        if self._head or self._tag >= 0:
            raise MalformedError("the message ends in the middle of a field")
        return bytes(self._kept)

    def _feed_head(self, byte: int) -> int:
        self._head.append(byte)
        number = self._tag >> 3
        if byte < 0x80:
            value = _read_varint(self._head)
            self._head.clear()
            if self._tag < 0:
                self._begin(value)
            elif self._tag & 7 == _Kind.BYTES:
                self._begin_value(value)
            else:
                if number in self.fields:
                    self._keep(_varint(value))
                self._tag = -1
        elif len(self._head) == _VARINT_BYTES:
            raise MalformedError("a number has more than 64 bits")
        return 1

    def _begin(self, tag: int) -> None:
        if not 0 < tag >> 3 <= _MAX_FIELD or tag & 7 not in _Kind.__members__.values():
            raise MalformedError(f"there is no field with the tag {tag}")
        self._tag = tag
        if tag & 7 == _Kind.FIXED64:
            self._begin_value(8)
        elif tag & 7 == _Kind.FIXED32:
            self._begin_value(4)

    def _begin_value(self, size: int) -> None:
        kept = self.fields.get(self._tag >> 3)
        self._left = size
        if isinstance(kept, Inner) and self._tag & 7 == _Kind.BYTES:
            self._value = Sieve(kept.fields)
        elif kept is None:
            self._value = None
        elif len(self._kept) + size > MAX_KEPT:
            raise ExcessError(f"more than {MAX_KEPT} bytes of it are needed")
        else:
            self._value = bytearray()
        if not size:
            self._end_value()

    def _feed_value(self, data: memoryview) -> int:
        part = data[: self._left]
        self._left -= len(part)
        if isinstance(self._value, Sieve):
            self._value.feed(part)
        elif self._value is not None:
            self._value += part
        if not self._left:
            self._end_value()
        return len(part)

    def _end_value(self) -> None:
        value, self._value = self._value, None
        kept = self.fields.get(self._tag >> 3)
        if value is not None and self._tag & 7 != _Kind.BYTES:
            assert isinstance(value, bytearray)  # noqa: S101  only BYTES are messages
            self._keep(value)
        elif isinstance(value, Sieve):
            self._keep_sized(value.kept())
        elif value is not None and not isinstance(kept, Inner | None):
            try:
                self._keep_sized(kept(bytes(value)))
            except DecodeError as e:
                raise MalformedError(f"field {self._tag >> 3} is no such message") from e
        self._tag = -1

    def _keep_sized(self, value: bytes) -> None:
        self._keep(_varint(len(value)) + value)

    def _keep(self, value: bytes | bytearray) -> None:
        self._kept += _varint(self._tag) + value
        if len(self._kept) > MAX_KEPT:
            raise ExcessError(f"more than {MAX_KEPT} bytes of it are needed")


def _read_varint(data: bytearray) -> int:
    value = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(data))
    if value >> 64:
        raise MalformedError("a number has more than 64 bits")
    return value


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
