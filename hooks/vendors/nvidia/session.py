"""Open sessions with NVML, one at a time (other threads wait), and name the NVML errors that mean "not available".

Source: NVML API reference, through nvidia-ml-py.

Tests: tests/unit/hooks/vendors/nvidia/test_positions.py
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pynvml

from lading.errors import HostError
from lading.nvml import UNSUPPORTED

UNKNOWN: Final = (*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)  # also the error for an index that the card lacks
WITHHELD: Final = (*UNSUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION)  # also the error for values that only administrators may read
_ONE_SESSION: Final = threading.Lock()


class LibraryError(HostError):
    """Report that the configured NVML library does not load."""


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
    """Open NVML until the end of the block. `what` names the block's work for the HostError, as in "cannot {what}"."""
    try:
        with session(library):
            yield
    except (pynvml.NVMLError, LibraryError) as e:
        raise HostError(f"cannot {what}: NVML: {e}") from e


@functools.cache
def _load(library: Path) -> ctypes.CDLL:
    """Load the library before pynvml loads its own: pynvml opens `libnvidia-ml.so.1`, and for this SONAME the loader returns
    the library that is loaded already."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as e:
        raise LibraryError(f"cannot load {library}: {e}") from e
