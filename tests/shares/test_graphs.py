"""Memory of graphs counts from the first launch of an instance until it is trimmed, and is refused beyond the share only."""

from typing import Final

import pytest

from tests.shares.calls import ALL, DEVICE, HALF, PINNED, POOL, Call, call
from tests.shares.program import BLOCK
from tests.shares.site import MIB, Process, Site, eventually, succeed

OK, OUT_OF_MEMORY = 0, 2
MEM_ALLOC: Final = 10  # CU_GRAPH_NODE_TYPE_MEM_ALLOC
RELAXED: Final = 2
UPLOADS: Final = 2  # CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
_NODE: Final = "iiiiPQ56xPQQQ"  # CUDA_MEM_ALLOC_NODE_PARAMS: CUmemPoolProps, access descriptors and their number, size, address


def node(size: int) -> list[object]:
    return [PINNED, 0, DEVICE, 0, 0, 0, 0, 0, size, 0]


def capture(size: int, allocate: Call, stream: object = "s", ending: str = "") -> list[Call]:
    return [
        call("cuStreamCreate", "&s", 1),
        call(f"cuStreamBeginCapture_v2{ending}", stream, RELAXED),
        allocate,
        call(f"cuMemFreeAsync{ending}", "a", stream),
        call(f"cuStreamEndCapture{ending}", stream, "&g"),
    ]


def add_node(size: int) -> list[Call]:
    return [call("cuGraphCreate", "&g", 0), call("cuGraphAddMemAllocNode", "&n", "g", None, 0, [_NODE, *node(size)])]


def add_any_node(size: int, function: str, edges: tuple[None, ...] = ()) -> list[Call]:
    params = ["i12x" + _NODE, MEM_ALLOC, *node(size)]
    return [call("cuGraphCreate", "&g", 0), call(function, "&n", "g", None, *edges, 0, params)]


ADD: Final = {
    "cuGraphAddMemAllocNode": add_node(HALF),
    "cuGraphAddNode": add_any_node(HALF, "cuGraphAddNode"),
    "cuGraphAddNode_v2": add_any_node(HALF, "cuGraphAddNode_v2", (None,)),
    "cuGraphAddNode_v3": add_any_node(HALF, "cuGraphAddNode_v3", (None,)),
    "cuMemAllocAsync": capture(HALF, call("cuMemAllocAsync", "&a", HALF, "s")),
    "cuMemAllocAsync_ptsz": capture(HALF, call("cuMemAllocAsync_ptsz", "&a", HALF, None), None, "_ptsz"),
    "cuMemAllocFromPoolAsync": [POOL, *capture(HALF, call("cuMemAllocFromPoolAsync", "&a", HALF, "p", "s"))],
}
INSTANTIATE: Final = call("cuGraphInstantiateWithFlags", "&e", "g", 0)
LAUNCH: Final = call("cuGraphLaunch", "e", None)
END: Final = [call("cuGraphExecDestroy", "e"), call("cuGraphDestroy", "g")]
TRIM: Final = call("cuDeviceGraphMemTrim", 0)
TAKE: Final = {
    "cuGraphLaunch": [INSTANTIATE, LAUNCH],
    "cuGraphLaunch_ptsz": [call("cuGraphInstantiate_v2", "&e", "g", None, None, 0), call("cuGraphLaunch_ptsz", "e", None)],
    "cuGraphUpload": [call("cuGraphInstantiate", "&e", "g", None, None, 0), call("cuGraphUpload", "e", None)],
    "cuGraphUpload_ptsz": [INSTANTIATE, call("cuGraphUpload_ptsz", "e", None)],
    "cuGraphInstantiateWithParams": [call("cuGraphInstantiateWithParams", "&e", "g", ["QPPi4x", UPLOADS, 0, 0, 0])],
}


@pytest.fixture
def process(site: Site) -> Process:
    return site.container("a", mib=ALL // MIB).start()


def check_until_it_is_trimmed(site: Site, process: Process, add: list[Call], take: list[Call]) -> None:
    succeed(process, [*add, *take[:-1]])
    assert site.use("a").memory_used_mib == 0
    succeed(process, [*take[-1:], LAUNCH, LAUNCH])
    assert site.use("a").memory_used_mib == site.driver_mib(process) == HALF // MIB
    succeed(process, END)
    assert process.do(["alloc", "plain", HALF + BLOCK], ["alloc", "plain", HALF]) == [OUT_OF_MEMORY, OK]
    succeed(process, [TRIM, ["alloc", "plain", HALF]])


@pytest.mark.parametrize("add", ADD.values(), ids=ADD)
def test_each_way_to_add_memory_to_a_graph_counts(site: Site, process: Process, add: list[Call]) -> None:
    check_until_it_is_trimmed(site, process, add, TAKE["cuGraphLaunch"])


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE)
def test_each_way_to_take_memory_of_a_graph_counts(site: Site, process: Process, take: list[Call]) -> None:
    check_until_it_is_trimmed(site, process, ADD["cuGraphAddMemAllocNode"], take)


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE)
def test_memory_of_a_graph_beyond_the_share_is_refused_and_the_program_goes_on(process: Process, take: list[Call]) -> None:
    succeed(process, [["alloc", "plain", HALF + BLOCK], *ADD["cuGraphAddMemAllocNode"], *take[:-1]])
    assert process.do(take[-1], ["counts"])[0] == OUT_OF_MEMORY
    assert process.call("counts") == [0, HALF + BLOCK]
    succeed(process, [["free", 0], take[-1], ["alloc", "plain", HALF], LAUNCH, TRIM, LAUNCH])


def test_what_graphs_had_that_are_gone_is_given_to_the_next_graph(process: Process) -> None:
    succeed(process, [*ADD["cuGraphAddMemAllocNode"], INSTANTIATE, LAUNCH, *END])
    succeed(process, [*add_node(ALL), INSTANTIATE, LAUNCH])


def test_memory_of_a_graph_counts_in_what_is_free(process: Process) -> None:
    succeed(process, [*ADD["cuGraphAddMemAllocNode"], INSTANTIATE, LAUNCH])
    eventually(lambda: process.call("info") == [HALF, ALL])


def test_graphs_without_memory_take_none(site: Site, process: Process) -> None:
    assert process.do(["begin_capture"], ["launch", 1000, True], ["end_capture"], ["launch_graph"]) == [OK] * 4
    assert site.use("a").memory_used_mib == 0
