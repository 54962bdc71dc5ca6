import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2.frames import LARGEST_WINDOW, ErrorCode, MalformedFrameError
from runtimeproxy.relay.windows import Window


def test_credit_for_the_relays_own_bytes_is_withheld_first() -> None:
    window = Window(100)
    window.sent(60)
    window.passed(30)
    assert window.credited(20) == 0
    assert window.credited(70) == 30
    assert (window.room, window.owed) == (100, 0)


@pytest.mark.parametrize(
    ("room", "increment", "code"),
    [(5, 0, ErrorCode.PROTOCOL_ERROR), (1, LARGEST_WINDOW, ErrorCode.FLOW_CONTROL_ERROR)],
)
def test_credit_that_no_peer_may_send(room: int, increment: int, code: ErrorCode) -> None:
    window = Window(room)
    with pytest.raises(MalformedFrameError) as e:
        window.credited(increment)
    assert e.value.code is code
    assert (window.room, window.owed) == (room, 0)


def test_the_largest_window_is_allowed() -> None:
    window = Window(0)
    assert window.credited(LARGEST_WINDOW) == LARGEST_WINDOW


@given(st.lists(st.tuples(st.sampled_from(["passed", "sent", "credited"]), st.integers(1, 1000))))
def test_an_idle_window_is_as_it_began(steps: list[tuple[str, int]]) -> None:
    """Check any order of steps: the client gets back as many bytes as it sent."""
    window = Window(1 << 20)
    out = back = passed = to_client = 0
    for step, size in steps:
        match step:
            case "passed":
                window.passed(size)
                out, passed = out + size, passed + size
            case "sent":
                window.sent(size)
                out += size
            case _:
                size = min(size, out - back)  # noqa: PLW2901
                if size:
                    to_client += window.credited(size)
                    back += size
        assert window.room == (1 << 20) - out + back
        assert to_client <= passed
    if out > back:
        to_client += window.credited(out - back)
    assert (window.room, window.owed, to_client) == (1 << 20, 0, passed)
