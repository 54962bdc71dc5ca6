"""A null pointer is answered as the driver answers it: refused, or allowed where the caller does not want that output."""

from typing import Final

import pytest

from tests.shares.calls import ALL, DEVICE, FILE_DESCRIPTOR, PINNED, Call, call, location, pool_of
from tests.shares.program import BLOCK, MIB
from tests.shares.site import Process

NULLS: Final = {
    "cuMemGetInfo, free": (call("cuMemGetInfo_v2", None, "&all"), 0),
    "cuMemGetInfo, total": (call("cuMemGetInfo_v2", "&left", None), 0),
    "cuMemGetInfo, both": (call("cuMemGetInfo_v2", None, None), 0),
    "cuDeviceTotalMem": (call("cuDeviceTotalMem_v2", None, 0), 1),
    "cuMemAlloc": (call("cuMemAlloc_v2", None, BLOCK), 1),
    "cuMemAllocManaged": (call("cuMemAllocManaged", None, BLOCK, 1), 1),
    "cuMemAllocPitch, pitch": (call("cuMemAllocPitch_v2", "&a", None, MIB, 2, 4), 1),
    "cuMemAllocPitch": (call("cuMemAllocPitch_v2", None, "&pitch", MIB, 2, 4), 1),
    "cuMemAllocAsync": (call("cuMemAllocAsync", None, BLOCK, None), 1),
    "cuMemAllocFromPoolAsync, pool": (call("cuMemAllocFromPoolAsync", "&a", BLOCK, None, None), 1),
    "cuMemPoolCreate, properties": (call("cuMemPoolCreate", "&p", None), 1),
    "cuMemPoolCreate": (call("cuMemPoolCreate", None, pool_of(DEVICE)), 1),
    "cuDeviceGetMemPool": (call("cuDeviceGetMemPool", None, 0), 1),
    "cuDeviceGetDefaultMemPool": (call("cuDeviceGetDefaultMemPool", None, 0), 1),
    "cuMemGetMemPool, location": (call("cuMemGetMemPool", "&p", None, PINNED), 1),
    "cuMemGetDefaultMemPool": (call("cuMemGetDefaultMemPool", None, location(DEVICE), PINNED), 1),
    "cuMemCreate, properties": (call("cuMemCreate", "&h", BLOCK, None, 0), 1),
    "cuMemRetainAllocationHandle": (call("cuMemRetainAllocationHandle", None, 42), 1),
    "cuMemExportToShareableHandle": (call("cuMemExportToShareableHandle", None, 42, FILE_DESCRIPTOR, 0), 1),
    "cuMemImportFromShareableHandle": (call("cuMemImportFromShareableHandle", None, -1, FILE_DESCRIPTOR), 1),
    "cuMemMapArrayAsync": (call("cuMemMapArrayAsync", None, 1, None), 1),
    "cuArrayCreate": (call("cuArrayCreate_v2", "&a", None), 1),
    "cuArray3DCreate": (call("cuArray3DCreate_v2", "&a", None), 1),
    "cuMipmappedArrayCreate": (call("cuMipmappedArrayCreate", "&a", None, 1), 1),
    "cuCtxCreate": (call("cuCtxCreate_v2", None, 0, 0), 1),
    "cuDevicePrimaryCtxRetain": (call("cuDevicePrimaryCtxRetain", None, 0), 1),
    "cuGreenCtxCreate": (call("cuGreenCtxCreate", None, None, 0, 1), 1),
    "cuGraphAddMemAllocNode": (call("cuGraphAddMemAllocNode", "&n", None, None, 0, None), 1),
    "cuGraphAddNode": (call("cuGraphAddNode", "&n", None, None, 0, None), 1),
    "cuGraphInstantiateWithFlags": (call("cuGraphInstantiateWithFlags", None, None, 0), 1),
    "cuGraphInstantiateWithParams": (call("cuGraphInstantiateWithParams", None, None, None), 1),
    "cuGraphLaunch": (call("cuGraphLaunch", None, None), 1),
    "cuCtxAttach": (call("cuCtxAttach", None, 0), 1),
    "cuCtxDestroy": (call("cuCtxDestroy_v2", None), 201),
    "cuCtxDetach": (call("cuCtxDetach", None), 201),
    "cuCtxFromGreenCtx": (call("cuCtxFromGreenCtx", "&c", None), 1),
    "cuGreenCtxDestroy": (call("cuGreenCtxDestroy", None), 1),
    "cuLaunchKernelEx": (call("cuLaunchKernelEx", None, None, None, None), 1),
    "cuLaunchKernelEx_ptsz": (call("cuLaunchKernelEx_ptsz", None, None, None, None), 1),
    "cuLaunchCooperativeKernelMultiDevice": (call("cuLaunchCooperativeKernelMultiDevice", None, 2, 0), 1),
    "cuGetProcAddress": (call("cuGetProcAddress", None, None, 12000, 0), 1),
}


@pytest.mark.parametrize(("asked", "result"), NULLS.values(), ids=NULLS)
def test_a_null_pointer_is_answered_as_the_driver_does(process: Process, asked: Call, result: int) -> None:
    assert process.do(asked) == [result]


def test_total_memory_without_free_memory_is_the_share(process: Process) -> None:
    assert process.do(call("cuMemGetInfo_v2", None, "&all"), ["value", "all"]) == [0, ALL]
    assert process.do(call("cuMemGetInfo_v2", "&left", None), ["value", "left"]) == [0, ALL]
