"""Test recorded connections through the relay: unchanged, or held and forwarded as decided, in any pieces."""

import gzip
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lading.http2 import frames
from lading.http2.frames import FrameReader
from lading.http2.messages import PREFIX_LENGTH, prefixed
from runtimeproxy.call.calls import METHODS
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.connection import Relay
from runtimeproxy.relay.events import CallHeld, Side

CRI = Path(__file__).parent / "cri"
NAMES = sorted(path.name.removesuffix(".rec.gz") for path in CRI.glob("*.rec.gz"))
BUDGET = 64 << 20
Change = Callable[[bytes], bytes | None]
Piece = tuple[Side, bytes]


def record(name: str) -> list[Piece]:
    data, pieces, at = gzip.decompress((CRI / f"{name}.rec.gz").read_bytes()), [], 0
    while at < len(data):
        side, size = struct.unpack_from(">cL", data, at)
        pieces.append((Side.CLIENT if side == b"C" else Side.RUNTIME, data[at + 5 : at + 5 + size]))
        at += 5 + size
    return pieces


RECORDS = {name: record(name) for name in NAMES}


def said(name: str, side: Side) -> bytes:
    return b"".join(data for by, data in RECORDS[name] if by is side)


@dataclass
class Outcome:
    to_runtime: bytes
    to_client: bytes
    held: list[CallHeld]


def relayed(pieces: Iterable[Piece], held_paths: Iterable[bytes] = (), change: Change = lambda _: None) -> Outcome:
    """Held calls are forwarded at once: changed as `change` says, or as they came where it says None."""
    budget = HoldBudget(BUDGET)
    relay = Relay(held_paths=frozenset(held_paths), budget=budget, clock=lambda: 0.0)
    out = Outcome(b"", b"", [])
    to_runtime, to_client = [], []
    for side, data in pieces:
        (relay.receive_from_client if side is Side.CLIENT else relay.receive_from_runtime)(data)
        for event in relay.take_events():
            assert isinstance(event, CallHeld)
            out.held.append(event)
            assert relay.forward(event.stream, change(bytes(event.message[PREFIX_LENGTH:])))
        to_runtime.append(relay.to_runtime())
        to_client.append(relay.to_client())
    assert relay.broken is None
    assert budget._free == BUDGET
    out.to_runtime, out.to_client = b"".join(to_runtime), b"".join(to_client)
    return out


def cut(pieces: Iterable[Piece], sizes: Iterable[int]) -> Iterator[Piece]:
    wanted = cycle(sizes)
    for side, data in pieces:
        at = 0
        while at < len(data):
            size = next(wanted)
            yield side, data[at : at + size]
            at += size


@dataclass
class Heard:
    """The content of a stream, as a strict reader parses it."""

    blocks: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytes = b""
    ended: bool = False


def read(data: bytes) -> dict[int, Heard]:
    """One direction's calls, by stream; every block is decoded in order, with no CONTINUATION in the recordings."""
    decoder, reader, calls = hpack.Decoder(), FrameReader(), dict[int, Heard]()
    data = data.removeprefix(frames.PREFACE)
    for kind, flags, stream, start, end in reader.frames(data):
        if kind not in (frames.DATA, frames.HEADERS):
            continue
        call = calls.setdefault(stream, Heard())
        if kind == frames.HEADERS:
            assert flags & frames.END_HEADERS
            assert not flags & (frames.PADDED | frames.PRIORITY_FIELDS)
            block = data[start + frames.HEADER_LENGTH : end]
            call.blocks.append([(name, value) for name, value in decoder.decode(block, raw=True)])
        else:
            call.data += data[start + frames.HEADER_LENGTH : end]
        call.ended = bool(flags & frames.END_STREAM)
    assert not reader.buffered
    return calls


def credit(data: bytes) -> Counter[int]:
    """The bytes of all WINDOW_UPDATEs, by stream."""
    given = Counter[int]()
    for kind, _, stream, start, _ in FrameReader().frames(data):
        if kind == frames.WINDOW_UPDATE:
            given[stream] += frames.unsigned(data, start + frames.HEADER_LENGTH)
    return given


def grown(message: bytes) -> bytes:
    return message + b"\xfa\x3f\x01x"  # a field that no one knows


@pytest.mark.parametrize(
    "change",
    [lambda _: None, lambda message: message, grown, lambda message: message[: len(message) // 2]],
    ids=["same", "rewritten", "larger", "smaller"],
)
def test_held_calls_are_what_was_decided_and_all_else_as_it_was(change: Change) -> None:
    before, out = read(said("kubelet-runtime", Side.CLIENT)), relayed(RECORDS["kubelet-runtime"], METHODS, change)
    after = read(out.to_runtime)
    held = {event.stream: event for event in out.held}
    wanted = {stream: call for stream, call in before.items() if dict(call.blocks[0])[b":path"] in METHODS}
    assert held.keys() == wanted.keys()
    assert len(held) > 40
    for stream, call in before.items():
        assert after[stream].blocks == call.blocks
        assert after[stream].ended == call.ended
        changed = change(call.data[PREFIX_LENGTH:]) if stream in held else None
        assert after[stream].data == (call.data if changed is None else prefixed(changed))
    assert read(out.to_client) == read(said("kubelet-runtime", Side.RUNTIME))


@given(st.lists(st.one_of(st.integers(1, 12), st.integers(1, 20_000)), min_size=1, max_size=12))
@example([1 << 30])  # the recorded pieces
@settings(max_examples=10, deadline=None)
def test_bytes_pass_unchanged_in_any_pieces(sizes: list[int]) -> None:
    """Check that nothing changes while no call is held, and that held calls do not depend on the pieces."""
    if sum(sizes) < 40 * len(sizes):
        sizes = [*sizes, 4000]  # otherwise each example takes seconds
    for name in NAMES:
        out = relayed(cut(RECORDS[name], sizes))
        assert (out.to_runtime, out.to_client) == (said(name, Side.CLIENT), said(name, Side.RUNTIME)), name
    same_calls(
        relayed(cut(RECORDS["kubelet-runtime"], sizes), METHODS, grown), relayed(RECORDS["kubelet-runtime"], METHODS, grown)
    )


def test_one_byte_at_a_time() -> None:
    part = RECORDS["kubelet-runtime"][:400]
    assert relayed(cut(part, [1])) == relayed(part)
    same_calls(relayed(cut(part, [1]), METHODS), relayed(part, METHODS))


def same_calls(one: Outcome, other: Outcome) -> None:
    """A held message goes on once it is decided, and its credit comes once the call ends, so how these lie among other calls'
    frames depends on how bytes arrive."""
    assert one.held == other.held
    assert read(one.to_runtime) == read(other.to_runtime)
    assert read(one.to_client) == read(other.to_client)
    assert credit(one.to_client) == credit(other.to_client)
