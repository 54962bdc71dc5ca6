"""Measure what a process queues on a card that containers share, and that looking at it breaks no capture of a stream."""

import time

import pytest

from tests.shares.calls import OTHER_CONTEXT, call
from tests.shares.site import Site, eventually
from tests.shares.test_captures import launch
from tests.shares.test_turns import MS, TURN_S

CAPTURES = 10
MARKS = 32  # the library's (shares/library/queue.h)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_captures_survive_the_ends_of_turns(site: Site, mode: int) -> None:
    """A thread launches while another one captures a stream, and a second container has every other turn."""
    process, other = site.container("a").start(), site.container("b").start()
    process.call("begin", 5 * MS, 0)
    other.call("begin", 5 * MS, 1)
    eventually(lambda: all(held > 0 for held in site.held().values()))
    before = site.held()["b"]
    for _ in range(CAPTURES):
        assert process.do(["begin_capture", mode], ["launch", MS, True]) == [0, 0]
        time.sleep(2 * TURN_S)
        assert process.do(["launch", MS, True], ["end_capture"]) == [0, 0]
    assert site.held()["b"] - before > 2 * TURN_S


def test_work_that_becomes_longer_is_not_queued_as_if_it_were_short(site: Site) -> None:
    process, other = site.container("a").start(), site.container("b").start()
    assert process.call("launch_many", 2, 5000) == 0
    other.call("begin", 5 * MS, 1)
    other.call("so_far")
    assert process.do(["launch_many", 20 * MS, 50], ["sync"]) == [0, 0]
    assert other.call("so_far")["longest_s"] < 8 * TURN_S


def test_an_answer_now_and_then_leaves_the_card_to_the_one_that_always_wants_it(site: Site) -> None:
    """A turn that is not used any more ends soon, also the first one after a pause."""
    answers, trains = site.container("a").start(), site.container("b").start()
    trains.call("begin", MS, 1)
    eventually(lambda: site.held().get("b", 0) > 0)
    before, began = site.held()["a"], time.monotonic()
    for _ in range(30):
        assert answers.call("launch", MS) == 0
        time.sleep(3 * TURN_S)
    assert (site.held()["a"] - before) / (time.monotonic() - began) < 0.1


@pytest.mark.fake_card("how many events exist")
def test_launches_in_two_contexts_are_marked_in_each_and_leave_few_events(site: Site) -> None:
    process = site.container("a").start()
    assert process.do(call("cuCtxGetCurrent", "&p"), OTHER_CONTEXT, ["load", "other"]) == [0, 0, None]
    in_both = [
        *(call("cuCtxSetCurrent", "p"), launch(None, MS)),
        *(call("cuCtxSetCurrent", "c"), launch(None, MS, kernel="other")),
    ]
    assert process.do(*in_both * 100) == [0] * 400
    assert process.call("call", "fake_cuda_live_events") <= MARKS
    assert process.do(call("cuCtxDestroy_v2", "c"), call("cuCtxSetCurrent", "p"), *[["launch", MS]] * 100) == [0] * 102


@pytest.mark.fake_card("which records it refused")
def test_work_in_several_contexts_is_bounded_in_each(site: Site) -> None:
    process, other = site.container("a").start(), site.container("b").start()
    streams = [call("cuCtxGetCurrent", "&p"), call("cuStreamCreate", "&s", 1), OTHER_CONTEXT, call("cuStreamCreate", "&t", 1)]
    assert process.do(*streams, ["load", "other"]) == [0, 0, 0, 0, None]
    other.call("begin", 5 * MS, 1)
    other.call("so_far")
    in_both = [
        *(call("cuCtxSetCurrent", "p"), launch("s", 20 * MS)),
        *(call("cuCtxSetCurrent", "c"), launch("t", 20 * MS, kernel="other")),
    ]
    assert process.do(*in_both * 25, ["sync"]) == [0] * 101
    assert other.call("so_far")["longest_s"] < 8 * TURN_S
    assert process.call("call", "fake_cuda_refused_records") == 0


def test_a_kernel_that_does_not_end_holds_up_later_launches_for_a_moment(site: Site) -> None:
    """Check that a launch waits for a second at most, because the kernel may wait for that launch."""
    process = site.container("a").start()
    began = time.monotonic()
    assert process.call("launch", 60_000 * MS) == 0
    assert process.call("launch_many", MS, 5) == 0
    assert time.monotonic() - began < 15
