"""One direction's header blocks: what each end's table needs to hear."""

import hpack
import pytest
from h2.settings import SettingCodes

from lading.http2.frames import ErrorCode, MalformedFrameError
from lading.http2.headers import HeaderLane
from tests.fakes.wire import HELD, Wire

FIELDS = ((b":status", b"200"), (b"x-new", b"entry"))
STATUS_200 = b"\x88"  # static entry 8


def test_what_is_rendered_moves_no_table() -> None:
    decoder = hpack.Decoder()
    assert tuple(decoder.decode(HeaderLane().render(FIELDS), raw=True)) == FIELDS
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("length", [0, 126, 127, 128, 254, 255, 16_511, 60_000])
def test_lengths_of_any_size(length: int) -> None:
    fields = ((b"x", b"v" * length),)
    assert tuple(hpack.Decoder().decode(HeaderLane().render(fields), raw=True)) == fields


def test_fields_that_must_not_be_indexed_stay_so() -> None:
    lane, block = HeaderLane(), hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(b"authorization", b"secret")])
    (field,) = hpack.Decoder().decode(lane.render(lane.decode(block)), raw=True)
    assert isinstance(field, hpack.NeverIndexedHeaderTuple)


def test_a_smaller_table_is_said_once() -> None:
    lane = HeaderLane()
    lane.acknowledge_table_size(0)
    assert lane.render(FIELDS)[0] == 0x20
    lane.acknowledge_table_size(100)
    assert lane.render(FIELDS)[0] == 0x00  # the receiver's is smaller than that already


def test_a_known_block_has_to_obey_too() -> None:
    lane = HeaderLane()
    for _ in range(2):
        assert lane.decode(STATUS_200) == FIELDS[:1]
    lane.acknowledge_table_size(0)
    with pytest.raises(MalformedFrameError) as caught:
        lane.decode(STATUS_200)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_large_blocks_are_not_kept() -> None:
    lane = HeaderLane()
    for size in (1, 1_000, 50_000):
        assert len(lane.decode(STATUS_200 * size)) == size
    assert list(lane._known) == [STATUS_200]


def test_a_table_that_had_grown_shrinks_before_a_block_of_the_relays_own() -> None:
    wire = Wire()
    wire.client.connection.update_settings({SettingCodes.HEADER_TABLE_SIZE: 65_536})
    wire.flow()
    wire.answer(wire.call())  # the runtime says that it uses it
    wire.client.connection.update_settings({SettingCodes.HEADER_TABLE_SIZE: 10_000})
    wire.flow()
    stream = wire.call(HELD)
    wire.refuse(stream)  # h2 insists on hearing of the change in the next block
    assert wire.client.streams[stream].last(b"grpc-status") == b"9"
