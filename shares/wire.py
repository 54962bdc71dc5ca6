"""Encode the frames between the share server and a container's library: 32 bytes, little-endian, on a stream socket.

    u8 version  u8 type  u16 device  u32 seq  i64 a  i64 b  i64 c

`device` is the index of a card in the container's grant, and in its page. Amounts are bytes or nanoseconds, and never negative.
A frame with a number beyond its bound is refused before any of it is used.
docs/isolation.md has the meaning of `a`, `b` and `c` for each type.

Tests: tests/unit/shares/test_server.py
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from shares.memory import MAX_BYTES, MAX_CONTEXTS

VERSION: Final = 1
SIZE: Final = 32
MAX_NS: Final = 366 * 86_400 * 1_000_000_000  # longest time that a client reports: a GPU kernel may run for months
_ANY: Final = 2**63 - 1
_MAX_PID: Final = 2**31 - 1
_FRAME: Final = struct.Struct("<BBHIqqq")


class Kind(IntEnum):
    HELLO = 1  # a: pid in the client's namespace, b: client's CLOCK_MONOTONIC, c: 1 if it launches work, 0 if it only queries
    WANT = 2  # a: estimate of the next burst, ns; c: device time used outside turns since the last frame, ns
    RELEASE = 3  # c: as in WANT
    ADD = 4  # a: bytes; b: 1 if they are allocated already (reported after a reconnect), which is never refused
    SUB = 5  # a: bytes freed
    USE = 6  # a: 1 pauses the holder of the turn for this process, 0 ends that; c: as in WANT
    CONTEXT = 7  # a: number of contexts that the process is about to have; b: 1 if it has them, which is never refused
    WELCOME = 128  # a: server's CLOCK_MONOTONIC, b: number of devices, c: 1 (takes USE, CONTEXT); has the page's descriptor
    TOKEN = 129  # a: length of the turn in ns, c: its end by the server's clock
    VERDICT = 130  # seq of the ADD or CONTEXT; a: 1 allowed, 0 refused; b: bytes used; c: limit in bytes
    REFUSED = 131  # a: a WireRefusal


# The greatest a, b and c of each type of frame that clients send. A field without a meaning may have any value. A request for
# any number of bytes can be answered: a program may ask for more than there is.
MOST: Final[dict[Kind, tuple[int, int, int]]] = {
    Kind.HELLO: (_MAX_PID, _ANY, 1),
    Kind.WANT: (MAX_NS, _ANY, MAX_NS),
    Kind.RELEASE: (_ANY, _ANY, MAX_NS),
    Kind.ADD: (_ANY, 1, _ANY),
    Kind.SUB: (MAX_BYTES, _ANY, _ANY),
    Kind.USE: (1, _ANY, MAX_NS),
    Kind.CONTEXT: (MAX_CONTEXTS, 1, _ANY),
}


class WireRefusal(IntEnum):
    OTHER_POD = 1  # the peer is not in a cgroup of the grant's pod
    TOO_MANY = 2  # the container has too many connections
    NO_GRANT = 3


class WireError(Exception):
    """Report a frame that no client of this version sends. The server closes the connection."""


class Frame(NamedTuple):
    kind: Kind
    device: int = 0
    seq: int = 0
    a: int = 0
    b: int = 0
    c: int = 0


def pack(frame: Frame) -> bytes:
    return _FRAME.pack(VERSION, *frame)


def unpack(data: bytes, devices: int) -> Frame:
    """Decode one frame from a client. `devices`: number of cards in its container's grant. Raise WireError."""
    version, kind, device, seq, a, b, c = _FRAME.unpack(data)
    if version != VERSION:
        raise WireError(f"version {version}; this server speaks {VERSION}")
    if kind not in MOST:
        raise WireError(f"type {kind} is not a type of frame that a client sends")
    if device >= devices:
        raise WireError(f"device {device}; the container has {devices}")
    if min(a, b, c) < 0:
        raise WireError(f"a negative amount: {min(a, b, c)}")
    for field, amount, most in zip("abc", (a, b, c), MOST[Kind(kind)], strict=True):
        if amount > most:
            raise WireError(f"{field} of {Kind(kind).name} is {amount}; the most is {most}")
    return Frame(Kind(kind), device, seq, a, b, c)
