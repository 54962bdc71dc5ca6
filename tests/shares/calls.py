"""Calls of the driver, as program.py makes them, for a share of 100 MiB.

They write to and read from variables of one letter: an address or array `a`, a context `c`, a file descriptor `f`, a handle
`h`, an imported handle `i`, a pool `p`, a reserved range `v`.
"""

from typing import Final

from tests.shares.program import FLOAT, MIB

Call = list[object]
ALL: Final = 100 * MIB
HALF: Final = ALL // 2


def call(name: str, *arguments: object) -> Call:
    return ["call", name, *arguments]


DEVICE, HOST, NUMA = 1, 2, 3  # CUmemLocationType
PINNED: Final = 1
FILE_DESCRIPTOR: Final = 1  # CUmemAllocationHandleType
THRESHOLD: Final = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
SPARSE, DEFERRED = 0x40, 0x80


def location(kind: int, card: int = 0) -> Call:
    return ["ii", kind, card]


def pool_of(kind: int, card: int = 0) -> Call:
    return ["iiiiPQ56x", PINNED, 0, kind, card, 0, 0]  # CUmemPoolProps


def create(handle: str, amount: int = ALL, *, kind: int = DEVICE) -> Call:
    return call("cuMemCreate", handle, amount, ["iiiiP8x", PINNED, FILE_DESCRIPTOR, kind, 0, 0], 0)


def array(out: str, *, flags: int = 0, function: str = "cuArray3DCreate_v2") -> Call:
    more = (2,) if function == "cuMipmappedArrayCreate" else ()
    depth = 256 if more else 512  # the further levels count as much as the first
    return call(function, out, ["QQQiII", ALL // MIB, 512, depth, FLOAT, 1, flags], *more)


def tiles(operation: int, handle: str | int) -> Call:
    """Map the handle into the array `a`, or unmap it: a CUarrayMapInfo."""
    info = ["i4xPi4x32xiiQQII8x", 0, "a", 0, operation, 0, handle, 0, 1, 0]
    return call("cuMemMapArrayAsync", info, 1, None)


SYNCHRONISE: Final = call("cuCtxSynchronize")
ENTER: Final[Call] = ["enter"]
OTHER_CONTEXT: Final = call("cuCtxCreate_v2", "&c", 0, 0)
ALLOC: Final = call("cuMemAlloc_v2", "&a", ALL)
ASYNC: Final = call("cuMemAllocAsync", "&a", ALL, None)
FREE: Final = call("cuMemFree_v2", "a")
FREE_ASYNC: Final = call("cuMemFreeAsync", "a", None)
RESERVE: Final = call("cuMemAddressReserve", "&v", ALL, 0, 0, 0)
MAP: Final = call("cuMemMap", "v", ALL, 0, "h", 0)
UNMAP: Final = call("cuMemUnmap", "v", ALL)
RELEASE: Final = call("cuMemRelease", "h")
POOL: Final = call("cuMemPoolCreate", "&p", pool_of(DEVICE))
FROM_POOL: Final = call("cuMemAllocFromPoolAsync", "&a", ALL, "p", None)
EXPORT: Final = call("cuMemExportToShareableHandle", "&f", "h", FILE_DESCRIPTOR, 0)
IMPORT: Final = call("cuMemImportFromShareableHandle", "&i", "f", FILE_DESCRIPTOR)
