"""Stand for the part of PyTorch that deploy/acceptance/share.py uses, on the driver API of the container.

Memory is allocated by cuMemAlloc; a product of two matrices is a kernel of 2 ms of the fake card.
"""

import ctypes
from typing import Any

PRODUCT_US = 2000
uint8 = float16 = None
_driver = ctypes.CDLL("libcuda.so.1")
_context, _module, _product = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"the driver returned {result}")


class cuda:  # noqa: N801 -- a module of PyTorch
    class OutOfMemoryError(Exception): ...

    @staticmethod
    def mem_get_info() -> tuple[int, int]:
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        _check(_driver.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)))
        return left.value, total.value

    @staticmethod
    def synchronize() -> None:
        _check(_driver.cuCtxSynchronize())


class _Matrix:
    def __matmul__(self, other: "_Matrix") -> None:
        _check(_driver.cuLaunchKernel(_product, PRODUCT_US, 1, 1, 1, 1, 1, 0, None, None, None))


def empty(amount: int, **_: Any) -> int:
    """Allocate so many bytes."""
    address = ctypes.c_uint64()
    if _driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(amount)):
        raise cuda.OutOfMemoryError
    return address.value


def randn(*_: int, **__: Any) -> _Matrix:
    return _Matrix()


_check(_driver.cuInit(0))
_check(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0))
_check(_driver.cuCtxSetCurrent(_context))
_check(_driver.cuModuleLoadData(ctypes.byref(_module), b""))
_check(_driver.cuModuleGetFunction(ctypes.byref(_product), _module, b"product"))
