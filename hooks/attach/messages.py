"""Render and parse netlink messages, their attributes, and the end of an answer. Bytes in, bytes and values out.

A request has no sequence number until the socket that sends it stamps one. An answer is the bytes of all messages of one
exchange. Its last message is an acknowledgement or error (NLMSG_ERROR), or the end of a dump (NLMSG_DONE). An error becomes a
`RefusedError` with the kernel's number and, if the kernel gives it, a text (extended acknowledgement).

`bench.netlink` compares this code with pyroute2.

Source: linux/netlink.h; Documentation/userspace-api/netlink/intro.rst. Numbers are in the host's byte order.
"""

import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP_INTR: Final = 0x10  # the listed objects changed during the dump
NLM_F_DUMP: Final = 0x300
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
NLM_F_APPEND: Final = 0x800
ASK: Final = NLM_F_REQUEST | NLM_F_ACK  # a request that an answer or an acknowledgement ends

NLM_F_CAPPED: Final = 0x100  # an error repeats only the request's header
NLM_F_ACK_TLVS: Final = 0x200

NLA_F_NESTED: Final = 0x8000  # an attribute with this bit in its type contains attributes

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_ERROR: Final = struct.Struct("=i")  # an errno, negative; 0 is an acknowledgement
_LENGTHS: Final = 0x10000  # lengths of an attribute have 16 bits
_TYPE_MASK: Final = 0x3FFF  # an attribute's type, without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_NLMSGERR_ATTR_MSG: Final = 1
_NO_LISTS: Final[Mapping[int, int]] = MappingProxyType({})

# An exchange takes a request and returns the whole answer. Another implementation than the kernel's can answer for the VFs of a
# PF.
Exchange = Callable[[bytes], bytes]


class RefusedError(Exception):
    """Report that the kernel refused a request. `code` is an errno, `detail` the kernel's own text or empty."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{errno_name(self.code)}: {self.detail or os.strerror(self.code)}"


def errno_name(code: int) -> str:
    """Return an error number's name as in the kernel's sources and ip(8): 95 is EOPNOTSUPP there, and ENOTSUP in Python."""
    return "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode.get(code, str(code))


class NetlinkMessage(NamedTuple):
    kind: int
    flags: int
    sequence: int
    body: bytes


def render_message(kind: int, flags: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body


def stamp(request: bytes, sequence: int) -> bytes:
    """Return the same request with this sequence number."""
    length, kind, flags, _, port = _HEADER.unpack_from(request)
    return _HEADER.pack(length, kind, flags, sequence, port) + request[_HEADER.size :]


def render_attribute(kind: int, payload: bytes) -> bytes:
    """Return the attribute with its padding to four octets."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def render_nested(kind: int, *attributes: bytes) -> bytes:
    return render_attribute(kind | NLA_F_NESTED, b"".join(attributes))


def render_number(kind: int, value: int, size: int = 4) -> bytes:
    return render_attribute(kind, value.to_bytes(size, sys.byteorder))


def parse_number(payload: bytes) -> int:
    return int.from_bytes(payload, sys.byteorder)


def render_text(kind: int, text: str) -> bytes:
    """Return the attribute with the text and a NUL. Octets that are not text are escaped as in Python's file names."""
    return render_attribute(kind, text.encode(errors="surrogateescape") + b"\0")


def parse_text(payload: bytes) -> str:
    """Return the text before the NUL at its end. Octets that are not text are escaped as in Python's file names."""
    return payload.rstrip(b"\0").decode(errors="surrogateescape")


def parse_messages(data: bytes) -> Iterator[NetlinkMessage]:
    """Yield the messages. Raise ValueError on truncated data."""
    start = 0
    while start < len(data):
        if len(data) - start < _HEADER.size:
            raise ValueError("a netlink message ends within its header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, start)
        end = start + length
        if length < _HEADER.size or end > len(data):
            raise ValueError(f"a netlink message says that it has {length} octets, of {len(data) - start}")
        yield NetlinkMessage(kind, flags, sequence, data[start + _HEADER.size : end])
        start = end + -length % 4


def parse_attributes(data: bytes, lists: Mapping[int, int] = _NO_LISTS) -> Iterator[tuple[int, bytes]]:
    """Yield (type, payload) of each attribute, in order. `lists`: types of lists that may be longer than 65535 octets, with the
    type of their members. Raise ValueError on truncated data."""
    start = 0
    while start < len(data):
        if len(data) - start < _ATTRIBUTE.size:
            raise ValueError("a netlink attribute ends within its header")
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        kind &= _TYPE_MASK
        if kind in lists:
            length = _measure_list(data, start, lists[kind])
        end = start + length
        if length < _ATTRIBUTE.size or end > len(data):
            raise ValueError(f"netlink attribute {kind} says that it has {length} octets, of {len(data) - start}")
        yield kind, data[start + _ATTRIBUTE.size : end]
        start = end + -length % 4


def _measure_list(data: bytes, start: int, member: int) -> int:
    """Return the octets of the list at `start`, which ends after its last member. A list with hundreds of VFs can be longer
    than 65535 octets: Linux then writes the length modulo 65536 (nla_nest_end). Raise ValueError if the lengths disagree."""
    end = start + _ATTRIBUTE.size
    while end + _ATTRIBUTE.size <= len(data) and _ATTRIBUTE.unpack_from(data, end)[1] & _TYPE_MASK == member:
        length = _ATTRIBUTE.unpack_from(data, end)[0]
        end += max(_ATTRIBUTE.size, length + -length % 4)
    written, kind = _ATTRIBUTE.unpack_from(data, start)
    if (end - start) % _LENGTHS != written:
        raise ValueError(
            f"netlink attribute {kind & _TYPE_MASK} says that it has {written} octets, and its members have {end - start}"
        )
    return end - start


def parse_answer(answer: bytes) -> list[NetlinkMessage]:
    """Return the messages before the end. Raise RefusedError if the end is an error, ValueError if there is no end."""
    netlink_messages: list[NetlinkMessage] = []
    for message in parse_messages(answer):
        if message.flags & NLM_F_DUMP_INTR:
            raise RefusedError(errno.EINTR, "the list changed while it was read")
        if ends(message):
            _raise_error(message)
            return netlink_messages
        netlink_messages.append(message)
    raise ValueError("a netlink answer without an end")


def ends(message: NetlinkMessage) -> bool:
    """Return whether this is the last message of its exchange."""
    return message.kind in {NLMSG_ERROR, NLMSG_DONE}


def _raise_error(message: NetlinkMessage) -> None:
    """Raise RefusedError if the last message of an exchange has an error number. Parse `struct nlmsgerr`, or the number alone
    at the end of a dump, and the attributes after it if the flags announce them."""
    code = -_ERROR.unpack_from(message.body)[0]
    text = b""
    if code and message.flags & NLM_F_ACK_TLVS:
        start = _ERROR.size
        if message.kind == NLMSG_ERROR:
            repeated = _HEADER.size if message.flags & NLM_F_CAPPED else _HEADER.unpack_from(message.body, start)[0]
            start += repeated + -repeated % 4
        text = dict(parse_attributes(message.body[start:])).get(_NLMSGERR_ATTR_MSG, b"")
    if code:
        raise RefusedError(code, text.rstrip(b"\0").decode("utf-8", "replace"))
