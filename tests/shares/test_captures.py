"""A capture of a stream gets the program's calls and none of the library's, which does not break it either."""

from typing import Final

import pytest

from tests.shares.calls import POOL, Call, call
from tests.shares.program import BLOCK, THREADS
from tests.shares.site import Site

NOT_SUPPORTED: Final = 801
MS: Final = 1000  # microseconds
GLOBAL: Final = 0  # a mode of captures
OWN_STREAM: Final = None  # the argument that means it, in functions with _ptsz

PER_THREAD: Final = 2  # CU_STREAM_PER_THREAD
STREAMS: Final = [("s", ""), (PER_THREAD, ""), ("s", "_ptsz"), (OWN_STREAM, "_ptsz")]


def launch(stream: object, microseconds: int, *, ending: str = "", kernel: str = "kernel") -> Call:
    return call(f"cuLaunchKernel{ending}", kernel, microseconds, 1, 1, THREADS, 1, 1, 0, stream, None, None)


@pytest.mark.fake_card("the events in a graph")
@pytest.mark.parametrize(("stream", "ending"), STREAMS)
def test_captured_launches_put_no_events_into_the_graph(site: Site, stream: object, ending: str) -> None:
    process = site.container("a").start()
    calls = [call("cuStreamCreate", "&s", 0), call(f"cuStreamBeginCapture_v2{ending}", stream, GLOBAL)]
    calls += [launch(stream, 20 * MS, ending=ending)] * 10
    calls += [call(f"cuStreamEndCapture{ending}", stream, "&g")]
    assert process.do(*calls) == [0] * len(calls)
    assert process.do(call("fake_cuda_events", "g"), ["counts"]) == [0, [0, 0]]
    assert not site.use("a").has_turn


@pytest.mark.fake_card("the events in a graph")
def test_launches_on_the_threads_own_stream_break_no_capture_of_another_thread(site: Site) -> None:
    process = site.container("a").start()
    assert process.do(call("cuStreamCreate", "&s", 0), call("cuStreamBeginCapture_v2", "s", GLOBAL)) == [0, 0]
    launches = [launch(OWN_STREAM, 5 * MS, ending="_ptsz")] * 5
    assert process.call("calls", ["enter"], *launches) == [None, *[0] * 5]
    assert process.do(call("cuStreamEndCapture", "s", "&g"), call("fake_cuda_events", "g")) == [0, 0]


def test_queries_of_memory_break_no_capture_of_another_thread(site: Site) -> None:
    process = site.container("a").start()
    begin = [call("cuMemAllocAsync", "&a", BLOCK, None), call("cuStreamCreate", "&s", 1)]
    begin += [call("cuStreamBeginCapture_v2", "s", GLOBAL)]
    assert process.do(*begin) == [0] * len(begin)
    assert process.call("calls", ["enter"], call("cuMemGetInfo_v2", "&left", "&all")) == [None, 0]
    assert process.do(call("cuStreamEndCapture", "s", "&g")) == [0]


@pytest.mark.parametrize(("stream", "ending"), STREAMS)
def test_memory_is_refused_while_its_stream_is_captured(site: Site, stream: object, ending: str) -> None:
    process = site.container("a").start()
    begin = [call("cuStreamCreate", "&s", 0), POOL, call(f"cuStreamBeginCapture_v2{ending}", stream, GLOBAL)]
    assert process.do(*begin) == [0] * len(begin)
    allocations = [call(f"cuMemAllocAsync{ending}", "&a", BLOCK, stream)]
    allocations += [call(f"cuMemAllocFromPoolAsync{ending}", "&a", BLOCK, "p", stream)]
    assert process.do(*allocations) == [NOT_SUPPORTED] * 2
    assert process.do(call(f"cuStreamEndCapture{ending}", stream, "&g")) == [0]
