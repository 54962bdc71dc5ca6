"""Check that the library changes none of the driver's refusals: each test runs with the library and without it.

The expected results were seen on a card (H200, driver 580.159), or are in the description of the function in cuda.h.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.shares.calls import Call, call
from tests.shares.program import BLOCK, FLOAT, THREADS
from tests.shares.site import Process, Site
from tests.shares.test_captures import launch

MS: Final = 1000  # microseconds
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # modes of captures
MODES: Final = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}
INVALID_VALUE, NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 1, 3, 201, 400, 600, 700
UNSUPPORTED, INVALIDATED, IMPLICIT, OTHER_THREAD = 900, 901, 906, 908
DISABLE_TIMING: Final = 2  # CU_EVENT_DISABLE_TIMING
LAYERED: Final = 1  # CUDA_ARRAY3D_LAYERED


@pytest.fixture(params=["library", "driver"])
def process(request: pytest.FixtureRequest, module_site: Site, driver_folder: Path) -> Iterator[Process]:
    path = module_site.environment()["LD_LIBRARY_PATH"] if request.param == "library" else str(driver_folder)
    process = module_site.container(request.node.name.partition("[")[0][5:60]).start(LD_LIBRARY_PATH=path)
    yield process
    process.kill()


# Captures


def elapsed() -> Call:
    return call("cuEventElapsedTime", "&ms", "e", "f")


LEGACY: Final = {
    "cuStreamSynchronize, legacy stream": call("cuStreamSynchronize", None),
    "cuEventRecord, legacy stream": call("cuEventRecord", "f", None),
    "cuLaunchKernel, legacy stream": launch(None, 1),
    "cuMemcpyDtoH": call("cuMemcpyDtoH_v2", "host", "memory", 64),
}
UNSAFE: Final = {
    "cuStreamSynchronize": call("cuStreamSynchronize", "t"),
    "cuStreamQuery": call("cuStreamQuery", "t"),
    "cuEventSynchronize": call("cuEventSynchronize", "e"),
    "cuEventQuery": call("cuEventQuery", "e"),
    "cuMemAlloc": call("cuMemAlloc_v2", "&a", BLOCK),
    "cuMemAllocAsync": call("cuMemAllocAsync", "&a", BLOCK, "t"),
    "cuMemPoolTrimTo": call("cuMemPoolTrimTo", "pool", 0),
    "cuMemPoolGetAttribute": call("cuMemPoolGetAttribute", "pool", 7, "&value"),
    "cuMemHostAlloc": call("cuMemHostAlloc", "&more", 4096, 0),
}
SAFE: Final = {
    "cuEventCreate": call("cuEventCreate", "&g", 0),
    "cuEventRecord": call("cuEventRecord", "f", "t"),
    "cuEventRecord_ptsz": call("cuEventRecord_ptsz", "f", None),
    "cuEventElapsedTime": elapsed(),
    "cuLaunchKernel": launch("t", 1),
    "cuGraphLaunch": call("cuGraphLaunch", "instance", "t"),
    "cuMemGetInfo": call("cuMemGetInfo_v2", "&left", "&all"),
    "cuStreamCreate": call("cuStreamCreate", "&u", 0),
    "cuCtxGetDevice": call("cuCtxGetDevice", "&card"),
}
Row = tuple[int, int, int]  # the call, the next launch into the capture, and the capture's end
ALLOWED: Final = (0, 0, 0)
PROHIBITED: Final = (UNSUPPORTED, INVALIDATED, INVALIDATED)


def prepare(process: Process) -> None:
    """Put what the calls need into variables: two streams, events, memory, a pool, and a graph."""
    calls = [
        *(call("cuStreamCreate", stream, 0) for stream in ("&s", "&t")),
        *(call("cuEventCreate", event, 0) for event in ("&e", "&f")),
        *(call("cuEventRecord", event, "t") for event in ("e", "f")),
        call("cuMemAlloc_v2", "&memory", BLOCK),
        call("cuMemHostAlloc", "&host", 4096, 0),
        call("cuDeviceGetDefaultMemPool", "&pool", 0),
        *(call("cuStreamBeginCapture_v2", "s", RELAXED), launch("s", 1), call("cuStreamEndCapture", "s", "&graph")),
        call("cuGraphInstantiateWithFlags", "&instance", "graph", 0),
        launch("t", 1),
        call("cuCtxSynchronize"),
    ]
    assert process.do(*calls) == [0] * len(calls)


def capture(process: Process, mode: int, tried: Call, *, own_thread: bool, thread_mode: int = GLOBAL) -> Row:
    """Make a call while a stream is captured. Return its result, and those of the capture after it."""
    assert process.do(call("cuStreamBeginCapture_v2", "s", mode)) == [0]
    exchange: list[Call] = [["put", "mode", thread_mode], call("cuThreadExchangeStreamCaptureMode", "&mode")]
    if own_thread:
        (result,) = process.do(tried)
    else:
        *_, result = process.call("calls", ["enter"], *exchange, tried)
    after, end = process.do(launch("s", 1), call("cuStreamEndCapture", "s", "&x"))
    assert process.do(call("cuCtxSynchronize")) == [0]
    return (result, after, end)


def table(process: Process, mode: int, *, own_thread: bool = False, thread_mode: int = GLOBAL) -> dict[str, Row]:
    prepare(process)
    rows = {"cuCtxSynchronize": call("cuCtxSynchronize"), **LEGACY, **UNSAFE, **SAFE}
    rows["cuStreamIsCapturing, legacy stream"] = call("cuStreamIsCapturing", None, "&status")
    return {name: capture(process, mode, row, own_thread=own_thread, thread_mode=thread_mode) for name, row in rows.items()}


def expected(*, is_prohibited: bool) -> dict[str, Row]:
    return {
        "cuCtxSynchronize": PROHIBITED,
        **dict.fromkeys(LEGACY, (IMPLICIT, INVALIDATED, INVALIDATED)),
        **dict.fromkeys(UNSAFE, PROHIBITED if is_prohibited else ALLOWED),
        **dict.fromkeys(SAFE, ALLOWED),
        "cuStreamIsCapturing, legacy stream": (IMPLICIT, 0, 0),
    }


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_capture_forbids_calls_of_other_threads_by_its_mode(process: Process, mode: int) -> None:
    assert table(process, mode) == expected(is_prohibited=mode == GLOBAL)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_capture_forbids_calls_of_its_own_thread_unless_it_is_relaxed(process: Process, mode: int) -> None:
    assert table(process, mode, own_thread=True) == expected(is_prohibited=mode != RELAXED)


def test_a_thread_in_relaxed_mode_may_make_unsafe_calls(process: Process) -> None:
    assert table(process, GLOBAL, thread_mode=RELAXED) == expected(is_prohibited=False)


def test_a_capture_of_another_stream_goes_on(process: Process) -> None:
    prepare(process)
    begin = [call("cuStreamBeginCapture_v2", "s", THREAD_LOCAL), call("cuStreamBeginCapture_v2", "t", RELAXED)]
    assert process.do(*begin, call("cuEventQuery", "e")) == [0, 0, UNSUPPORTED]
    assert process.do(*(call("cuStreamEndCapture", stream, "&x") for stream in "st")) == [INVALIDATED, 0]


def test_a_capture_is_ended_by_its_own_thread_unless_it_is_relaxed(process: Process) -> None:
    prepare(process)
    end = call("cuStreamEndCapture", "s", "&x")
    assert process.do(call("cuStreamBeginCapture_v2", "s", THREAD_LOCAL)) == [0]
    assert process.call("calls", ["enter"], end) == [None, OTHER_THREAD]
    assert process.do(end, call("cuStreamBeginCapture_v2", "s", RELAXED)) == [0, 0]
    assert process.call("calls", ["enter"], end) == [None, 0]


# Launches


def test_a_launch_needs_a_block(process: Process) -> None:
    assert process.do(launch(None, 0), launch(None, 1)) == [INVALID_VALUE, 0]


def test_a_launch_needs_a_kernel_and_a_stream_of_the_present_context(process: Process) -> None:
    assert process.do(call("cuLaunchKernel", None, 1, 1, 1, THREADS, 1, 1, 0, None, None, None)) == [INVALID_HANDLE]
    assert process.do(call("cuStreamCreate", "&s", 0), call("cuCtxCreate_v2", "&c", 0, 0), launch(None, 1)) == [
        0,
        0,
        INVALID_HANDLE,
    ]
    assert process.do(["load", "kernel"], launch(None, 1), launch("s", 1)) == [None, 0, INVALID_HANDLE]


# Faults


def test_after_a_fault_each_call_of_the_process_is_refused(process: Process) -> None:
    prepare(process)
    assert process.do(["fault"], call("cuCtxSynchronize")) == [0, ILLEGAL_ADDRESS]
    rows = {**LEGACY, **UNSAFE, **{name: row for name, row in SAFE.items() if not name.startswith("cuCtx")}}
    rows |= {"cuMemFree": call("cuMemFree_v2", "memory"), "cuCtxSynchronize": call("cuCtxSynchronize")}
    assert {name: result for name, row in rows.items() for result in process.do(row)} == dict.fromkeys(rows, ILLEGAL_ADDRESS)


def test_a_fault_is_seen_when_the_kernel_runs_and_ends_the_work_behind_it(process: Process) -> None:
    prepare(process)
    assert process.do(launch("t", 300 * MS), ["fault"], launch("t", 600_000 * MS)) == [0] * 3
    assert process.do(call("cuStreamSynchronize", "t")) == [ILLEGAL_ADDRESS]


def test_a_fault_leaves_other_processes_alone(process: Process, module_site: Site, driver_folder: Path) -> None:
    other = module_site.container("other").start(LD_LIBRARY_PATH=str(driver_folder))
    assert process.do(["fault"], call("cuCtxSynchronize")) == [0, ILLEGAL_ADDRESS]
    assert other.do(["launch", MS], ["sync"], ["alloc", "plain", BLOCK]) == [0, 0, 0]


# Forked children


def test_a_forked_child_of_a_process_that_uses_the_card_cannot(process: Process, module_site: Site) -> None:
    prepare(process)
    module_site.admit(process.call("fork"))
    calls = [call("cuInit", 0), call("cuMemAlloc_v2", "&a", BLOCK), launch("t", 1), call("cuCtxSynchronize")]
    calls += [call("cuStreamSynchronize", "t"), call("cuEventQuery", "e"), call("cuEventRecord", "e", "t")]
    assert process.call("in_child", *calls) == [NOT_INITIALIZED] * len(calls)
    assert process.do(["launch", MS], ["sync"]) == [0, 0]


def test_a_second_driver_in_a_namespace_of_the_loader_ends_the_program(process: Process) -> None:
    process.tell(["init_in_namespace"])
    with pytest.raises(AssertionError, match="ended"):
        process.told()


# Events and the order of streams


def test_time_passes_between_events_that_were_recorded_and_count_time(process: Process) -> None:
    events = [call("cuEventCreate", "&e", 0), call("cuEventCreate", "&f", 0), call("cuEventCreate", "&g", DISABLE_TIMING)]
    assert process.do(*events, call("cuEventQuery", "f")) == [0, 0, 0, 0]
    assert process.do(*(call("cuEventRecord", event, None) for event in "eg"), ["sync"]) == [0, 0, 0]
    measured = [call("cuEventElapsedTime", "&ms", "e", other) for other in "fge"]
    assert process.do(*measured) == [INVALID_HANDLE, INVALID_HANDLE, 0]


@pytest.mark.parametrize(("non_blocking", "is_done"), [(0, NOT_READY), (1, 0)], ids=["blocking", "non-blocking"])
def test_the_legacy_stream_waits_for_blocking_streams(process: Process, non_blocking: int, is_done: int) -> None:
    calls = [call("cuStreamCreate", "&s", non_blocking), call("cuEventCreate", "&e", 0), launch("s", 1000 * MS)]
    assert process.do(*calls, call("cuEventRecord", "e", None)) == [0] * 4
    assert process.do(["sleep", 0.2], call("cuEventQuery", "e"), call("cuStreamQuery", None)) == [None, is_done, is_done]
    assert process.do(call("cuStreamQuery", "s")) == [NOT_READY]


# Arrays


def array(*sides: int, flags: int = 0) -> Call:
    return ["QQQiII", *sides, *[0] * (3 - len(sides)), FLOAT, 1, flags]


FIT: Final[Sequence[tuple[str, list[Any]]]] = [
    ("cuArray3DCreate_v2", array(131072)),
    ("cuArray3DCreate_v2", array(131072, 1)),
    ("cuArray3DCreate_v2", array(1, 65536)),
    ("cuArray3DCreate_v2", array(16384, 1, 1)),
    ("cuArray3DCreate_v2", array(1, 1, 16384)),
    ("cuArray3DCreate_v2", array(32768, 1, 2, flags=LAYERED)),
    ("cuMipmappedArrayCreate", array(32768)),
    ("cuMipmappedArrayCreate", array(1, 32768)),
    ("cuMipmappedArrayCreate", array(1, 16384, 1)),
]


@pytest.mark.parametrize(("function", "sides"), FIT, ids=[f"{name} {sides[1:4]}" for name, sides in FIT])
def test_an_array_has_limits(process: Process, function: str, sides: list[Any]) -> None:
    more = [1] if function == "cuMipmappedArrayCreate" else []
    larger = [*sides[:1], *(side + 1 if side == max(sides[1:4]) else side for side in sides[1:4]), *sides[4:]]
    assert process.do(call(function, "&a", sides, *more), call(function, "&b", larger, *more)) == [0, INVALID_VALUE]
