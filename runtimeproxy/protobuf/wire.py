"""Read the protobuf wire format, so that a large message can be searched and parsed a part at a time.

Parsing field by field gives the same result as parsing at once, because protobuf merges successive input. Parts are needed
because a C call holds the GIL until it returns, in any thread.

Source: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message

# Wire types: 0 varint, 1 fixed64, 2 length-delimited, 3 and 4 begin and end of a group, 5 fixed32.
LENGTH: Final = 2

# A C call searches or parses this many bytes at a time, in well under a millisecond.
PART: Final = 64 << 10
# Groups may be nested this deep, which is deeper than protobuf's own limit.
_MAX_DEPTH: Final = 100

Field = tuple[int, int, int, int]  # tag (number << 3 | wire type), start of the field, start and end of its content


class BrokenWireError(Exception):
    """Report that the next bytes are not a field that this module can read; protobuf's parser then decides."""


def contains(message: bytes, needle: bytes) -> bool:
    """Return `needle in message`, searching a part at a time."""
    overlap = len(needle) - 1
    return any(message.find(needle, at, at + PART + overlap) >= 0 for at in range(0, max(1, len(message)), PART))


def parse_in_parts(kind: type[Message], message: bytes) -> Message:
    """Return `kind.FromString(message)`. Raises google.protobuf's DecodeError."""
    parsed = kind()
    _merge(parsed, message, 0, len(message))
    return parsed


def fields(message: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields between `start` and `end`; a group is one field. Raises BrokenWireError if one ends later."""
    at = start
    while at < end:
        begin = at
        tag = message[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(message, begin, end)
        content = at
        match tag & 7:
            case 2:  # the most frequent wire type comes first
                size = message[at] if at < end else 0x80
                at += 1
                if size >= 0x80:
                    size, at = _varint(message, content, end)
                content = at
                at += size
            case 0:
                _, at = _varint(message, at, end)
            case 5:
                at += 4
            case 1:
                at += 8
            case 3:  # GROUP
                at = _group_end(message, at, end, tag >> 3)
            case _:
                raise BrokenWireError
        if at > end or not tag >> 3:
            raise BrokenWireError
        yield tag, begin, content, at


def _merge(into: Message, message: bytes, start: int, end: int) -> None:
    """Merge fields in runs of about PART bytes; merge a large embedded message field by field."""
    if end - start <= PART:
        _take(into, message, start, end)
        return
    messages = {field.number << 3 | LENGTH: field.name for field in into.DESCRIPTOR.fields if field.message_type}
    run = start
    try:
        for tag, begin, content, stop in fields(message, start, end):
            if stop - run > PART:
                _take(into, message, run, begin)
                run = begin
            if stop - begin > PART and tag in messages and (inner := _inner(into, messages[tag])):
                _merge(inner, message, content, stop)
                run = stop
    except BrokenWireError:
        pass  # protobuf refuses the rest
    _take(into, message, run, end)


def _take(into: Message, message: bytes, start: int, end: int) -> None:
    into.MergeFromString(memoryview(message)[start:end])  # type: ignore[arg-type]  # any buffer will do, and needs no copy


def _inner(into: Message, name: str) -> Message | None:
    """Return the message for the next occurrence of this field, or None for a map, whose entries are not messages."""
    held: Any = getattr(into, name)
    if isinstance(held, Message):
        held.SetInParent()
        return held
    added: Message | None = held.add() if hasattr(held, "add") else None
    return added


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BrokenWireError


def _group_end(message: bytes, at: int, end: int, number: int) -> int:
    """Return the position behind the end of the group whose content begins at `at`."""
    opened = [number]
    while opened:
        tag, at = _varint(message, at, end)
        match tag & 7:
            case 0:
                _, at = _varint(message, at, end)
            case 1:
                at += 8
            case 2:
                size, at = _varint(message, at, end)
                at += size
            case 3:
                opened.append(tag >> 3)
            case 4 if opened.pop() != tag >> 3:
                raise BrokenWireError
            case 4:
                pass
            case 5:
                at += 4
            case _:
                raise BrokenWireError
        if at > end or len(opened) > _MAX_DEPTH:
            raise BrokenWireError
    return at
