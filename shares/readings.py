"""Read by NVML how much memory of a card each process has, with its contexts, as the driver counts it.

The session stays open while shared cards are read: to open one takes longer than the reading itself, and the driver is in use
anyway.
"""

import contextlib
import ctypes
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pynvml

from lading.errors import HostError
from lading.nvml import list_processes
from lading.vocabulary import GpuUuid

Readings = Mapping[GpuUuid, Mapping[int, int]]  # bytes by process ID, for each card that answered
Read = Callable[[Collection[GpuUuid]], Readings]


class DriverReadings:
    def __init__(self, find_library: Callable[[], Path | None]) -> None:
        """Prepare to read. `find_library` returns the path of the NVML to load; None: the dynamic loader finds it."""
        self._find_library = find_library
        self._is_open = False

    def read(self, cards: Collection[GpuUuid]) -> Readings:
        """Return what each process has of these cards; without cards, end the session. Called in one thread at a time. Raise
        HostError."""
        try:
            if not cards:
                self._close()
                return {}
            self._open()
            return {uuid: self._read_card(uuid) for uuid in cards}
        except (pynvml.NVMLError, OSError) as e:
            self._close()  # the driver may have been reloaded
            raise HostError(f"cannot read the memory of processes: NVML: {e}", hint="nvml_library") from e

    def _read_card(self, uuid: GpuUuid) -> dict[int, int]:
        processes = list_processes(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        return {one.pid: one.used_bytes for one in processes if one.used_bytes is not None}

    def _open(self) -> None:
        if self._is_open:
            return
        if (library := self._find_library()) is not None:
            ctypes.CDLL(str(library))  # pynvml loads a library by this SONAME, and gets the one that is loaded
        pynvml.nvmlInit()
        self._is_open = True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
