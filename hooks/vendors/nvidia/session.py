"""Sessions with NVML, one at a time: another thread's waits. And which of its errors say that something is not there.

Source: NVML API reference, through nvidia-ml-py.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pynvml

from lading.errors import HostError

T = TypeVar("T")

UNSUPPORTED: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
UNKNOWN: Final = (*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)  # also a number that the card does not have
WITHHELD: Final = (*UNSUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION)  # also what is for administrators only
_ONE_SESSION: Final = threading.Lock()


class LibraryError(HostError):
    """The configured NVML library does not load."""


@contextlib.contextmanager
def session(library: Path | None) -> Iterator[None]:
    """Open NVML until the end of the block. Raise NVMLError or LibraryError."""
    with _ONE_SESSION:
        if library is not None:
            _load(library)
        pynvml.nvmlInit()
        try:
            yield
        finally:
            pynvml.nvmlShutdown()


@contextlib.contextmanager
def session_to(what: str, library: Path | None) -> Iterator[None]:
    """Open NVML until the end of the block, which does what these words say. Raise HostError with them."""
    try:
        with session(library):
            yield
    except (pynvml.NVMLError, LibraryError) as e:
        raise HostError(f"cannot {what}: NVML: {e}") from e


@functools.cache
def _load(library: Path) -> ctypes.CDLL:
    """Load the library before pynvml does: it opens `libnvidia-ml.so.1`, and the loader returns a library of that SONAME that
    is loaded already."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as e:
        raise LibraryError(f"cannot load {library}: {e}") from e


def ask(call: Callable[[], T], otherwise: T, *, absent: tuple[int, ...] = UNSUPPORTED) -> T:
    """Return what NVML answers; `otherwise` if it answers one of the errors `absent`. Raise NVMLError."""
    try:
        return call()
    except pynvml.NVMLError as e:
        if e.value in absent:
            return otherwise
        raise
