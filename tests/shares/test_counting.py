"""Each way in which memory begins and ends counts: the table has the calls, and each row is a test.

A container has a share of 100 MiB, and the calls take all of it. Whether they do is seen by one more allocation, of 2 MiB while
the memory is to be there, and of 100 MiB when it has ended.
"""

from typing import Final, NamedTuple

import pytest

from tests.shares.calls import (
    ALL,
    ALLOC,
    ASYNC,
    DEFERRED,
    DEVICE,
    ENTER,
    EXPORT,
    FILE_DESCRIPTOR,
    FREE,
    FREE_ASYNC,
    FROM_POOL,
    HALF,
    HOST,
    IMPORT,
    MANAGED,
    MAP,
    NUMA,
    OTHER_CONTEXT,
    PINNED,
    POOL,
    RELEASE,
    RESERVE,
    SPARSE,
    SYNCHRONISE,
    THRESHOLD,
    UNMAP,
    Call,
    array,
    call,
    create,
    location,
    pool_of,
    tiles,
)
from tests.shares.card import choose_card
from tests.shares.program import BLOCK, FLOAT, MIB
from tests.shares.site import Container, Process, Site, eventually, succeed
from tests.shares.test_memory import KINDS

OK, OUT_OF_MEMORY = 0, 2


ATTACH: Final = call("cuCtxAttach", "&c", 0)
DETACH: Final = call("cuCtxDetach", "c")
DESTROY_CONTEXT: Final = call("cuCtxDestroy_v2", "c")
RETAIN_PRIMARY: Final = call("cuDevicePrimaryCtxRetain", "&x", 0)
RELEASE_PRIMARY: Final = call("cuDevicePrimaryCtxRelease_v2", 0)
RESET_PRIMARY: Final = call("cuDevicePrimaryCtxReset_v2", 0)
GREEN: Final = [call("cuGreenCtxCreate", "&green", None, 0, 1), call("cuCtxFromGreenCtx", "&c", "green")]
DESTROY_GREEN: Final = call("cuGreenCtxDestroy", "green")
DESTROY: Final = call("cuArrayDestroy", "a")
CLOSE: Final[Call] = ["close", "f"]


class Row(NamedTuple):
    begin: list[Call]
    end: list[Call]
    keep: list[Call] = []  # noqa: RUF012 -- no row changes it. After each of these calls the memory is still there.


ROWS: Final = {
    "cuMemAlloc, cuMemFree": Row([ALLOC], [FREE]),
    "cuMemAlloc, cuMemFreeAsync": Row([ALLOC], [FREE_ASYNC]),
    "cuMemAllocManaged": Row([call("cuMemAllocManaged", "&a", ALL, 1)], [FREE]),
    "cuMemAllocPitch": Row([call("cuMemAllocPitch_v2", "&a", "&pitch", MIB, 100, 4)], [FREE]),
    # A context ends with what was allocated in it
    "cuCtxDestroy": Row([OTHER_CONTEXT, ALLOC], [DESTROY_CONTEXT, ENTER]),
    "cuCtxDestroy of CUDA 3": Row([OTHER_CONTEXT, ALLOC], [call("cuCtxDestroy", "c"), ENTER]),
    "cuCtxDetach": Row([OTHER_CONTEXT, ALLOC], [DETACH, ENTER]),
    "cuCtxDetach, attached": Row([OTHER_CONTEXT, ATTACH, ALLOC], [call("cuCtxSetCurrent", "c"), DETACH, ENTER], keep=[DETACH]),
    "cuCtxDestroy, attached": Row([OTHER_CONTEXT, ATTACH, ALLOC], [DESTROY_CONTEXT, ENTER]),
    "cuDevicePrimaryCtxReset": Row([ALLOC], [RESET_PRIMARY]),
    "cuDevicePrimaryCtxReset of CUDA 7": Row([ALLOC], [call("cuDevicePrimaryCtxReset", 0)]),
    "cuDevicePrimaryCtxReset, another context is current": Row([ALLOC, OTHER_CONTEXT], [RESET_PRIMARY, DESTROY_CONTEXT, ENTER]),
    "cuDevicePrimaryCtxReset, no context is current": Row([ALLOC], [call("cuCtxSetCurrent", None), RESET_PRIMARY, ENTER]),
    "of another context than the primary": Row(
        [OTHER_CONTEXT, ALLOC],
        [call("cuCtxSetCurrent", "c"), FREE, DESTROY_CONTEXT, ENTER],
        keep=[RESET_PRIMARY, RELEASE_PRIMARY, RETAIN_PRIMARY],
    ),
    "cuDevicePrimaryCtxRelease, the last": Row(
        [RETAIN_PRIMARY, ALLOC], [RELEASE_PRIMARY, RETAIN_PRIMARY], keep=[RELEASE_PRIMARY]
    ),
    "cuDevicePrimaryCtxRelease of CUDA 7, the last": Row([ALLOC], [call("cuDevicePrimaryCtxRelease", 0), RETAIN_PRIMARY]),
    "cuGreenCtxDestroy, the last reference to the primary context": Row(
        [*GREEN, call("cuCtxSetCurrent", "c"), ALLOC, ENTER], [DESTROY_GREEN, RETAIN_PRIMARY], keep=[RELEASE_PRIMARY]
    ),
    "in a green context, cuDevicePrimaryCtxRelease": Row(
        [*GREEN, call("cuCtxSetCurrent", "c"), ALLOC, ENTER], [RELEASE_PRIMARY, RETAIN_PRIMARY], keep=[DESTROY_GREEN]
    ),
    "in a green context, cuDevicePrimaryCtxReset": Row(
        [*GREEN, call("cuCtxSetCurrent", "c"), ALLOC, ENTER], [RESET_PRIMARY, DESTROY_GREEN]
    ),
    # Pools
    "cuMemAllocAsync, and a synchronisation": Row([ASYNC], [SYNCHRONISE], keep=[FREE_ASYNC]),
    "cuMemAllocAsync, cuStreamSynchronize": Row([ASYNC, FREE_ASYNC], [call("cuStreamSynchronize", None)]),
    "cuMemAllocAsync, cuMemFree": Row([ASYNC], [FREE]),
    "cuMemAllocAsync, the pool keeps it": Row(
        [call("cuDeviceGetMemPool", "&p", 0), call("cuMemPoolSetAttribute", "p", THRESHOLD, ["Q", ALL]), ASYNC],
        [FREE_ASYNC, SYNCHRONISE],
    ),
    "cuMemAllocAsync of the thread's own stream": Row(
        [call("cuMemAllocAsync_ptsz", "&a", ALL, None)], [call("cuMemFreeAsync_ptsz", "a", None), SYNCHRONISE]
    ),
    "cuMemAllocFromPoolAsync": Row([POOL, FROM_POOL], [FREE_ASYNC, SYNCHRONISE]),
    "cuMemAllocFromPoolAsync of the thread's own stream": Row(
        [POOL, call("cuMemAllocFromPoolAsync_ptsz", "&a", ALL, "p", None)], [FREE_ASYNC, SYNCHRONISE]
    ),
    "cuMemPoolDestroy, all was freed": Row([POOL, FROM_POOL], [FREE_ASYNC, call("cuMemPoolDestroy", "p")]),
    "cuMemPoolDestroy, not all was freed": Row([POOL, FROM_POOL], [FREE_ASYNC], keep=[call("cuMemPoolDestroy", "p")]),
    "cuMemPoolDestroy, not all was freed, cuMemFree": Row([POOL, FROM_POOL], [FREE], keep=[call("cuMemPoolDestroy", "p")]),
    "a managed pool without a location": Row(
        [call("cuMemGetDefaultMemPool", "&p", location(0), MANAGED), FROM_POOL], [FREE_ASYNC, SYNCHRONISE]
    ),
    "a managed pool of the host": Row(
        [call("cuMemGetMemPool", "&p", location(HOST), MANAGED), FROM_POOL], [FREE_ASYNC, SYNCHRONISE]
    ),
    "cuDeviceSetMemPool": Row([POOL, call("cuDeviceSetMemPool", 0, "p"), ASYNC], [FREE_ASYNC, SYNCHRONISE]),
    "cuMemGetMemPool": Row([call("cuMemGetMemPool", "&p", location(DEVICE), PINNED), FROM_POOL], [FREE_ASYNC, SYNCHRONISE]),
    "a pool in a context that ends": Row([OTHER_CONTEXT, ASYNC], [FREE_ASYNC, SYNCHRONISE], keep=[DESTROY_CONTEXT]),
    "a pool in the primary context": Row([ASYNC], [FREE_ASYNC, SYNCHRONISE], keep=[RESET_PRIMARY]),
    # Virtual memory
    "cuMemCreate": Row([create("&h")], [RELEASE]),
    "cuMemMap": Row([create("&h"), RESERVE, MAP], [UNMAP], keep=[RELEASE]),
    "cuMemMap, the handle is last": Row([create("&h"), RESERVE, MAP], [RELEASE], keep=[UNMAP]),
    "several mappings in one cuMemUnmap": Row(
        [
            RESERVE,
            create("&h", HALF),
            create("&g", HALF),
            call("cuMemMap", "v", HALF, 0, "h", 0),
            ["put", "w", "v", HALF],
            call("cuMemMap", "w", HALF, 0, "g", 0),
        ],
        [UNMAP],
        keep=[RELEASE, call("cuMemRelease", "g")],
    ),
    "host memory is mapped before it": Row(
        [
            RESERVE,
            create("&g", HALF, kind=HOST),
            call("cuMemMap", "v", HALF, 0, "g", 0),
            ["put", "w", "v", HALF],
            create("&h"),
            call("cuMemMap", "w", HALF, 0, "h", 0),
        ],
        [UNMAP],
        keep=[RELEASE],
    ),
    "cuMemRetainAllocationHandle": Row(
        [create("&h"), RESERVE, MAP, ["put", "w", "v", HALF], call("cuMemRetainAllocationHandle", "&i", "w"), RELEASE],
        [call("cuMemRelease", "i")],
        keep=[UNMAP],
    ),
    "cuMemRetainAllocationHandle of a released handle": Row(
        [create("&h"), RESERVE, MAP, RELEASE, ["put", "w", "v", HALF], call("cuMemRetainAllocationHandle", "&i", "w")],
        [call("cuMemRelease", "i")],
        keep=[UNMAP],
    ),
    "cuMemCreate in a context that ends": Row([OTHER_CONTEXT, create("&h")], [RELEASE], keep=[DESTROY_CONTEXT]),
    "cuMemMap in a context that ends": Row(
        [OTHER_CONTEXT, create("&h"), RESERVE, MAP], [UNMAP], keep=[RELEASE, DESTROY_CONTEXT]
    ),
    "cuMemCreate in the primary context": Row([create("&h")], [RELEASE], keep=[RESET_PRIMARY]),
    "cuMemExportToShareableHandle": Row([create("&h"), EXPORT], [CLOSE], keep=[RELEASE]),
    "cuMemExportToShareableHandle, the handle is last": Row([create("&h"), EXPORT], [RELEASE], keep=[CLOSE]),
    "cuMemExportToShareableHandle, a descriptor is given again": Row(
        [
            create("&g", HALF),
            call("cuMemExportToShareableHandle", "&f", "g", FILE_DESCRIPTOR, 0),
            CLOSE,
            create("&h", HALF),
            EXPORT,
        ],
        [call("cuMemRelease", "g"), CLOSE],
        keep=[RELEASE],
    ),
    "cuMemImportFromShareableHandle": Row([create("&h"), EXPORT], [call("cuMemRelease", "i")], keep=[RELEASE, IMPORT, CLOSE]),
    "cuMemImportFromShareableHandle, mapped": Row(
        [create("&h"), EXPORT, RELEASE, IMPORT, CLOSE, RESERVE, call("cuMemMap", "v", ALL, 0, "i", 0)],
        [UNMAP],
        keep=[call("cuMemRelease", "i")],
    ),
    "cuMemImportFromShareableHandle beside the handle": Row(
        [create("&h"), EXPORT, IMPORT, CLOSE], [call("cuMemRelease", "i")], keep=[RELEASE]
    ),
    # Arrays
    "cuArrayCreate": Row([call("cuArrayCreate_v2", "&a", ["QQiI", ALL // 4 // 512, 512, FLOAT, 1])], [DESTROY]),
    "cuArray3DCreate": Row([array("&a")], [DESTROY]),
    "cuMipmappedArrayCreate": Row([array("&a", function="cuMipmappedArrayCreate")], [call("cuMipmappedArrayDestroy", "a")]),
    "cuArray3DCreate in a context that ends": Row([OTHER_CONTEXT, array("&a")], [DESTROY_CONTEXT, ENTER]),
    "cuMemMapArrayAsync": Row([array("&a", flags=DEFERRED), create("&h"), tiles(1, "h")], [tiles(2, 0)], keep=[RELEASE]),
    "cuMemMapArrayAsync, cuArrayDestroy": Row(
        [array("&a", flags=DEFERRED), create("&h"), tiles(1, "h")], [DESTROY], keep=[RELEASE]
    ),
    "cuMemMapArrayAsync, cuMipmappedArrayDestroy": Row(
        [array("&a", flags=SPARSE, function="cuMipmappedArrayCreate"), create("&h"), tiles(1, "h")],
        [call("cuMipmappedArrayDestroy", "a")],
        keep=[RELEASE],
    ),
    "cuMemMapArrayAsync, a context that ends": Row(
        [OTHER_CONTEXT, array("&a", flags=SPARSE), create("&h"), tiles(1, "h")], [DESTROY_CONTEXT, ENTER], keep=[RELEASE]
    ),
    "cuMemMapArrayAsync, the handle is last": Row(
        [array("&a", flags=DEFERRED), create("&h"), tiles(1, "h")], [RELEASE], keep=[tiles(2, 0)]
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_memory_counts_until_it_ends(process: Process, row: Row) -> None:
    succeed(process, row.begin)
    assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
    for one in row.keep:
        succeed(process, [one])
        if "Ctx" in str(one[1]):
            succeed(process, [ENTER])  # the context that was current may have ended
        assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
        if choose_card().is_fake:
            assert process.call("counts")[1] == ALL
    succeed(process, row.end)
    succeed(process, [["alloc", "plain", ALL]])


LARGE: Final = 3 << 30
OF_HOST: Final = {
    "cuMemPoolCreate": [
        call("cuMemPoolCreate", "&p", pool_of(HOST)),
        call("cuMemAllocFromPoolAsync", "&a", LARGE, "p", None),
        call("cuMemFreeAsync", "a", None),
    ],
    "cuMemPoolCreate of a NUMA node": [
        call("cuMemPoolCreate", "&p", pool_of(NUMA)),
        call("cuMemAllocFromPoolAsync_ptsz", "&a", LARGE, "p", None),
        call("cuMemFree_v2", "a"),
        call("cuMemPoolDestroy", "p"),
    ],
    "cuMemGetDefaultMemPool": [
        call("cuMemGetDefaultMemPool", "&p", location(HOST), PINNED),
        call("cuMemAllocFromPoolAsync", "&a", LARGE, "p", None),
    ],
    "cuMemGetMemPool": [
        call("cuMemGetMemPool", "&p", location(HOST), PINNED),
        call("cuMemAllocFromPoolAsync", "&a", LARGE, "p", None),
    ],
    "cuMemCreate": [create("&h", LARGE, kind=HOST)],
    "a sparse array": [call("cuArray3DCreate_v2", "&a", ["QQQiII", 4096, 512, 512, FLOAT, 1, SPARSE])],
    "a sparse mipmapped array": [call("cuMipmappedArrayCreate", "&a", ["QQQiII", 4096, 512, 512, FLOAT, 1, SPARSE], 2)],
}


@pytest.mark.parametrize("calls", OF_HOST.values(), ids=OF_HOST)
def test_memory_that_is_not_of_the_card_does_not_count(process: Process, calls: list[Call]) -> None:
    succeed(process, [*calls, SYNCHRONISE, ALLOC, FREE])


def test_what_a_pool_keeps_is_refused_to_others_until_it_is_trimmed(container: Container, process: Process) -> None:
    other = container.start()
    succeed(process, [POOL, call("cuMemPoolSetAttribute", "p", THRESHOLD, ["Q", ALL]), FROM_POOL, FREE_ASYNC, SYNCHRONISE])
    assert other.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
    succeed(process, [call("cuMemPoolTrimTo", "p", 0)])
    eventually(lambda: other.call("alloc", "plain", ALL) == OK)
    other.kill()


def test_free_memory_is_that_of_now(process: Process) -> None:
    succeed(process, [ASYNC, FREE_ASYNC, SYNCHRONISE])
    eventually(lambda: process.call("info") == [ALL, ALL])


@pytest.mark.fake_card("how much it has allocated")
def test_threads_that_allocate_in_all_ways_keep_to_the_share_and_lose_nothing(container: Container) -> None:
    process = container.start(FAKE_CUDA_FREE_US="200")
    assert process.call("mix", KINDS, 4, 200) <= ALL
    succeed(process, [["trim"], ALLOC])
    process.kill()


def test_an_imported_handle_beside_its_own_counts_once(process: Process) -> None:
    succeed(process, [create("&h", HALF), EXPORT, IMPORT, ["alloc", "plain", HALF]])
    assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY


def test_a_descriptor_that_is_another_open_file_of_the_driver_keeps_no_memory(process: Process) -> None:
    succeed(process, [create("&h"), EXPORT, ["reopen", "f"], RELEASE, ALLOC])


def test_what_another_process_exported_counts_where_it_is_mapped(container: Container, process: Process) -> None:
    other = container.start()
    succeed(process, [create("&h"), EXPORT])
    succeed(other, [["take_descriptor", "f", process.pid, process.call("value", "f")], IMPORT, CLOSE, RESERVE])
    mapping = call("cuMemMap", "v", ALL, 0, "i", 0)
    assert other.do(mapping) == [OUT_OF_MEMORY]  # it counts in the process that created it
    succeed(process, [RELEASE, CLOSE, create("&h", BLOCK), RELEASE])
    succeed(other, [mapping])
    assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
    succeed(other, [UNMAP])
    assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
    succeed(other, [call("cuMemRelease", "i")])
    eventually(lambda: process.call("alloc", "plain", ALL) == OK)
    other.kill()


SECOND: Final = [call("cuDevicePrimaryCtxRetain", "&second", 1), call("cuCtxSetCurrent", "second")]


@pytest.fixture
def both(site: Site) -> Process:
    """Start a process of a container with shares of two cards: 100 MiB of the first, 200 MiB of the second."""
    container = site.container("a", mib=ALL // MIB, other_mib=200)
    return container.start(init=True, **site.card.show(2))


@pytest.mark.fake_card("how much it has allocated")
def test_a_pool_counts_on_its_own_card(both: Process) -> None:
    succeed(both, [call("cuMemPoolCreate", "&p", pool_of(DEVICE, 1)), FROM_POOL])
    assert [both.call("counts", card)[1] for card in (0, 1)] == [0, ALL]
    succeed(both, [["alloc", "plain", ALL]])  # this is memory of the first card
    assert both.do(call("cuMemAllocFromPoolAsync", "&b", ALL, "p", None), FROM_POOL) == [OK, OUT_OF_MEMORY]


def test_a_default_pool_of_another_card_counts_on_that_card(both: Process) -> None:
    succeed(
        both, [call("cuDeviceGetDefaultMemPool", "&p", 1), FROM_POOL, call("cuMemAllocFromPoolAsync", "&b", ALL, "p", None)]
    )
    assert both.do(FROM_POOL, ["alloc", "plain", ALL]) == [OUT_OF_MEMORY, OK]


@pytest.mark.fake_card("how much it has allocated")
def test_memory_of_a_stream_counts_on_the_streams_card(both: Process) -> None:
    succeed(both, [*SECOND, call("cuStreamCreate", "&s", 0), ["enter"], call("cuMemAllocAsync", "&a", 2 * ALL, "s")])
    assert [both.call("counts", card)[1] for card in (0, 1)] == [0, 2 * ALL]
    assert both.do(call("cuMemAllocAsync", "&b", BLOCK, "s"), ["alloc", "plain", ALL]) == [OUT_OF_MEMORY, OK]


def test_memory_that_is_freed_in_the_context_of_another_card_is_given_back_to_its_own(both: Process) -> None:
    succeed(both, [ALLOC, *SECOND, FREE, ["enter"], ALLOC])
