import gzip
import zlib

import pytest

from lading.http2.messages import GrpcStatus, prefixed
from runtimeproxy.relay.message import PART, Received, UnreadableMessageError, unpack

MESSAGE = prefixed(bytes(range(256)) * 1000)
LIMIT = 1000


def received(size: int) -> Received:
    """MESSAGE in payloads of that size."""
    taken = Received()
    for at in range(0, len(MESSAGE), size):
        taken.add(MESSAGE[at : at + size])
    return taken


@pytest.mark.parametrize("size", [1, 7, 16_384, PART, len(MESSAGE)])
def test_the_parts_are_the_message_and_not_many(size: int) -> None:
    taken = received(size)
    assert b"".join(taken.parts) == MESSAGE
    assert len(taken) == len(MESSAGE)
    assert len(taken.parts) <= 1 + len(MESSAGE) // PART


def test_the_prefix_is_there_once_all_of_it_came() -> None:
    taken = Received()
    for byte in MESSAGE[:4]:
        taken.add(bytes([byte]))
        assert taken.prefix() is None
    taken.add(MESSAGE[4:5])
    assert taken.prefix() == (False, len(MESSAGE) - 5)


@pytest.mark.parametrize("size", [1, 16_384, PART, len(MESSAGE)])
@pytest.mark.parametrize("kept", [0, 1, PART - 1, PART, PART + 1, len(MESSAGE) - 1, len(MESSAGE)])
def test_what_lies_behind_is_cut_off(size: int, kept: int) -> None:
    taken = received(size)
    assert taken.cut(kept) == MESSAGE[kept:]
    assert b"".join(taken.parts) == MESSAGE[:kept]
    assert len(taken) == kept


def packed(content: bytes) -> bytes:
    return b"\x01" + len(content).to_bytes(4, "big") + content


def test_what_is_not_compressed() -> None:
    assert unpack(prefixed(b"abc"), b"gzip", LIMIT) == b"abc"  # the flag says it, not the call's encoding
    assert unpack(bytearray(prefixed(b"abc") + b"more"), b"", LIMIT) == b"abc"


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_compressed_messages(encoding: bytes, compress: object, size: int) -> None:
    content = b"x" * size
    assert unpack(packed(compress(content)), encoding, LIMIT) == content  # type: ignore[operator]


def test_every_member_is_read() -> None:
    """Go's gzip reads every member, so what a pod hides in the second one must be seen."""
    assert unpack(packed(gzip.compress(b"one,") + gzip.compress(b"two")), b"gzip", LIMIT) == b"one,two"


@pytest.mark.parametrize(
    ("content", "encoding", "status"),
    [
        (gzip.compress(b"x" * (LIMIT + 1)), b"gzip", GrpcStatus.RESOURCE_EXHAUSTED),
        (gzip.compress(b"\0" * (1 << 24)), b"gzip", GrpcStatus.RESOURCE_EXHAUSTED),
        (gzip.compress(b"x" * LIMIT) + gzip.compress(b"x"), b"gzip", GrpcStatus.RESOURCE_EXHAUSTED),
        (gzip.compress(b"x")[:-1], b"gzip", GrpcStatus.INTERNAL),
        (gzip.compress(b"x") + b"garbage", b"gzip", GrpcStatus.INTERNAL),
        (gzip.compress(b"") * 50_000, b"gzip", GrpcStatus.INTERNAL),  # each member costs a copy of those behind it
        (b"not gzip", b"gzip", GrpcStatus.INTERNAL),
        (gzip.compress(b"x"), b"deflate", GrpcStatus.INTERNAL),
        (b"x", b"snappy", GrpcStatus.UNIMPLEMENTED),
        (b"x", b"", GrpcStatus.UNIMPLEMENTED),
        (b"x", b"\xff", GrpcStatus.UNIMPLEMENTED),
    ],
    # Said, because what gzip writes has the time in it, and the processes of one run must name the tests alike.
    ids=[
        "a byte too many",
        "far too many",
        "in two members",
        "cut off",
        "garbage behind it",
        "many members",
        "no gzip",
        "no deflate",
        "another encoding",
        "no encoding",
        "no text",
    ],
)
def test_what_cannot_be_read(content: bytes, encoding: bytes, status: GrpcStatus) -> None:
    with pytest.raises(UnreadableMessageError) as e:
        unpack(packed(content), encoding, LIMIT)
    assert e.value.status is status
