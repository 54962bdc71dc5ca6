"""Test one direction's header blocks between hpack's own encoder and decoder."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import Fields, HeaderLane
from tests.fakes.wire import Encoder

REQUEST = ((b":method", b"POST"), (b":path", b"/runtime.v1.RuntimeService/Version"), (b"te", b"trailers"))
STATUS_200 = b"\x88"  # static entry 8
SECRET = hpack.NeverIndexedHeaderTuple(b"authorization", b"token")


class Ends:
    """A sender and a receiver with the lane between them."""

    def __init__(self) -> None:
        self.encoder, self.decoder = Encoder(), hpack.Decoder()
        self.lane = HeaderLane()

    def encode(self, fields: Fields) -> bytes:
        return self.encoder.encode(fields, huffman=False)

    def receive(self, block: bytes) -> Fields:
        return tuple((bytes(name), bytes(value)) for name, value in self.decoder.decode(block, raw=True))

    def pass_on(self, fields: Fields) -> None:
        """Pass the fields on as the relay does: verbatim as long as that is possible."""
        block = self.encode(fields)
        decoded = self.lane.decode(block)
        assert tuple(map(tuple, decoded)) == fields
        if self.lane.verbatim:
            self.lane.passed()
        else:
            block = self.lane.render(decoded)
        assert self.receive(block) == fields

    def resize(self, size: int) -> None:
        """The receiver announces a table size and the sender acknowledges it."""
        self.decoder.max_allowed_table_size = size
        self.lane.announce_table_size(size)
        self.lane.acknowledge_table_size(size)
        self.encoder.header_table_size = size


def test_blocks_pass_and_ours_move_no_table() -> None:
    ends = Ends()
    for number in range(5):
        ends.pass_on(REQUEST)
        ends.pass_on((*REQUEST, (b"x-number", b"%d" % number)))
        ours = ((b":status", b"200"), (b"grpc-message", b"x" * number * 100))
        assert ends.receive(ends.lane.render(ours)) == ours


def test_a_dropped_block_is_made_up_for() -> None:
    ends = Ends()
    ends.pass_on(REQUEST)
    ends.lane.decode(ends.encode(((b"x-new", b"entry"),)))  # a block that the receiver never sees
    ends.lane.verbatim = False
    for _ in range(3):
        ends.pass_on(((b"x-new", b"entry"), *REQUEST))


def test_a_cached_block_is_decoded_again_after_the_table_changed() -> None:
    ends = Ends()
    ends.pass_on(((b"x-a", b"1"),))
    block = ends.encode(((b"x-a", b"1"),))
    assert len(block) == 1  # an index
    assert ends.lane.decode(block) == ends.lane.decode(block) == ((b"x-a", b"1"),)
    ends.pass_on(((b"x-b", b"2"),))
    assert tuple(map(tuple, ends.lane.decode(block))) == ((b"x-b", b"2"),)


def test_a_field_that_must_never_be_indexed_stays_one() -> None:
    lane = HeaderLane()
    block = bytes(hpack.Encoder().encode([SECRET]))
    (decoded,) = hpack.Decoder().decode(lane.render(lane.decode(block)), raw=True)
    assert isinstance(decoded, hpack.NeverIndexedHeaderTuple)
    assert tuple(decoded) == tuple(SECRET)


@pytest.mark.parametrize("first", ["verbatim", "rendered anew", "ours"])
@pytest.mark.parametrize("sizes", [(0,), (64,), (0, 4096), (100, 10, 4096), (8192, 4096), (8192,)])
def test_a_size_update_reaches_the_receiver_first(sizes: tuple[int, ...], first: str) -> None:
    """Check the next block after a change of the table size; hpack's decoder refuses a block without the update."""
    ends = Ends()
    ends.pass_on(((b"x-a", b"1"), *REQUEST))
    ends.lane.verbatim = first != "rendered anew"
    for size in sizes:
        ends.resize(size)
    if first == "ours":
        ours = ((b":status", b"200"),)
        assert ends.receive(ends.lane.render(ours)) == ours
    for _ in range(3):
        ends.pass_on(((b"x-a", b"1"), *REQUEST))


@pytest.mark.parametrize("length", [0, 126, 127, 128, 254, 255, 16_511, 60_000])
def test_lengths_of_any_size(length: int) -> None:
    fields = ((b"x", b"v" * length),)
    assert tuple(hpack.Decoder().decode(HeaderLane().render(fields), raw=True)) == fields


def test_a_smaller_table_is_announced_once() -> None:
    lane = HeaderLane()
    lane.acknowledge_table_size(0)
    assert lane.render(REQUEST)[0] == 0x20
    lane.acknowledge_table_size(100)
    assert lane.render(REQUEST)[0] == 0x00  # the receiver's is smaller than that already


def test_a_cached_block_has_to_obey_a_new_table_size() -> None:
    lane = HeaderLane()
    for _ in range(2):
        assert lane.decode(STATUS_200) == ((b":status", b"200"),)
    lane.acknowledge_table_size(0)
    with pytest.raises(MalformedFrameError) as caught:
        lane.decode(STATUS_200)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_large_blocks_are_not_cached() -> None:
    lane = HeaderLane()
    for size in (1, 1_000, 50_000):
        assert len(lane.decode(STATUS_200 * size)) == size
    assert list(lane._cached) == [STATUS_200]


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff", b"\xbe", b"\x00\x05ab", b"\x40", b"\x3f\xe1\x7f"])
def test_a_block_that_is_none(block: bytes) -> None:
    with pytest.raises(MalformedFrameError) as e:
        HeaderLane().decode(block)
    assert e.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_block_that_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lading.http2.headers.MAX_FIELDS_SIZE", 10_000)
    lane = HeaderLane()
    encoder = hpack.Encoder()
    first = bytes(encoder.encode([(b"x-big", b"v" * 3000)]))
    lane.decode(first)
    index = bytes(encoder.encode([(b"x-big", b"v" * 3000)]))
    with pytest.raises(MalformedFrameError) as e:
        lane.decode(index * 4)
    assert e.value.code is ErrorCode.ENHANCE_YOUR_CALM


names = st.sampled_from([b"x-a", b"x-b", b":path", b"grpc-status", b"content-type"])
blocks = st.lists(st.tuples(names, st.binary(max_size=200)), max_size=6).map(tuple)
# A block that passes, one of Lading, one that is dropped, a new table size.
steps = st.lists(st.one_of(st.tuples(st.sampled_from(["pass", "ours", "drop"]), blocks), st.integers(0, 8192)), max_size=25)


@given(steps)
def test_both_ends_stay_in_step_whatever_happens(taken: list[tuple[str, Fields] | int]) -> None:
    ends = Ends()
    for step in taken:
        match step:
            case int(size):
                ends.resize(size)
            case ("pass", fields):
                ends.pass_on(fields)
            case ("ours", fields):
                assert ends.receive(ends.lane.render(fields)) == fields
            case (_, fields):
                ends.lane.decode(ends.encode(fields))
                ends.lane.verbatim = False
