import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2.frames import LARGEST_WINDOW, ErrorCode, MalformedFrameError
from lading.http2.messages import prefixed
from runtimeproxy.relay.stream import Hold, Step, Stream, Waiting, Window

# The state after each step, in the order of `Step`: complete, cut short, forward, refuse, cancel.
AFTER = {
    Hold.RECEIVING: (Hold.HELD, Hold.PASSING, None, Hold.REFUSED, Hold.PASSING),
    Hold.HELD: (None, None, Hold.PASSING, Hold.REFUSED, Hold.PASSING),
    Hold.PASSING: (None, None, None, None, Hold.PASSING),
    Hold.REFUSED: (None, None, None, None, None),
}


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("hold", Hold)
def test_each_step_leads_to_its_state_or_is_an_error(hold: Hold, step: Step) -> None:
    stream, after = Stream(1, hold), AFTER[hold][list(Step).index(step)]
    assert stream.allows(step) is (after is not None)
    if after is None:
        with pytest.raises(KeyError):
            stream.take(step)
    else:
        stream.take(step)
    assert stream.hold is (after or hold)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 60)))
def test_waiting_data_are_taken_in_order_and_in_any_sizes(parts: list[bytes], sizes: list[int]) -> None:
    waiting, whole, taken = Waiting(*parts, own=True, end_stream=False), b"".join(parts), b""
    for size in [*sizes, len(whole)]:
        step = min(size, waiting.remaining)
        taken += b"".join(waiting.take(step))
        assert (taken, waiting.remaining) == (whole[: len(taken)], len(whole) - len(taken))
    assert taken == whole


@pytest.mark.parametrize("content", [b"", b"create"])
def test_a_message_is_whole_with_its_last_byte(content: bytes) -> None:
    stream, message = Stream(1, Hold.RECEIVING), prefixed(content)
    for byte in message:
        assert not stream.whole
        stream.received.add(bytes((byte,)))
        stream.read_prefix()
    assert (stream.whole, stream.expected) == (True, len(message))


@pytest.mark.parametrize(
    ("timeout", "deadline"), [((), None), (((b"grpc-timeout", b"2S"),), 12.0), (((b"grpc-timeout", b"soon"),), None)]
)
def test_a_deadline_counts_from_the_headers(timeout: tuple[tuple[bytes, bytes], ...], deadline: float | None) -> None:
    stream = Stream(7, Hold.HELD, path=b"/a", headers=((b"traceparent", b"00-\xff"), *timeout), opened_at=10.0)
    held = stream.call()
    assert (held.stream, held.path, held.encoding, held.deadline) == (7, b"/a", b"", deadline)
    assert held.traceparent == "00-\N{REPLACEMENT CHARACTER}"


def test_credit_for_the_relays_own_bytes_is_withheld_first() -> None:
    window = Window(100)
    window.sent(60)
    window.passed(30)
    assert window.credited(20) == 0
    assert window.credited(70) == 30
    assert (window.free, window.owed) == (100, 0)


@pytest.mark.parametrize(
    ("free", "increment", "code"), [(5, 0, ErrorCode.PROTOCOL_ERROR), (1, LARGEST_WINDOW, ErrorCode.FLOW_CONTROL_ERROR)]
)
def test_credit_that_no_peer_may_send(free: int, increment: int, code: ErrorCode) -> None:
    window = Window(free)
    with pytest.raises(MalformedFrameError) as e:
        window.credited(increment)
    assert e.value.code is code
    assert (window.free, window.owed) == (free, 0)


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
        assert window.free == (1 << 20) - out + back
        assert to_client <= passed
    if out > back:
        to_client += window.credited(out - back)
    assert (window.free, window.owed, to_client) == (1 << 20, 0, passed)
