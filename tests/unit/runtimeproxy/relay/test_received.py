import pytest

from lading.http2.messages import prefixed
from runtimeproxy.relay.received import PART, Received

MESSAGE = prefixed(bytes(range(256)) * 1000)


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
