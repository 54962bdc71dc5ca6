"""Read by NVML which processes use a card and how much of its memory each has, for lading-hooks and lading-shares.

Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetMPSComputeRunningProcesses, through
nvidia-ml-py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pynvml

T = TypeVar("T")

UNSUPPORTED: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_NO_INSTANCE_ID: Final = 0xFFFFFFFF  # instance id of a process on a card that is not in MIG mode


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """Represent a process that computes on a card, also by way of an MPS server."""

    pid: int
    instance: tuple[int, int] | None  # MIG: its GPU instance and compute instance
    used_bytes: int | None  # with its contexts; None: the driver does not report it


def ask(call: Callable[[], T], otherwise: T, *, absent: tuple[int, ...] = UNSUPPORTED) -> T:
    """Return the result of an NVML call; `otherwise` if the call fails with an error in `absent`. Raise other NVMLErrors."""
    try:
        return call()
    except pynvml.NVMLError as e:
        if e.value in absent:
            return otherwise
        raise


def list_processes(handle: Any) -> tuple[CardProcess, ...]:
    """Return the processes of a card, sorted. NVML lists the clients of an MPS server separately, and may list a process twice:
    the larger amount counts. Raise NVMLError."""
    listed = [
        *pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        *ask(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle), []),
    ]
    used: dict[tuple[int, tuple[int, int] | None], int | None] = {}
    for one in listed:
        key = one.pid, None if one.gpuInstanceId == _NO_INSTANCE_ID else (one.gpuInstanceId, one.computeInstanceId)
        used[key] = max(_known(used.get(key), one.usedGpuMemory), default=None)
    return tuple(
        CardProcess(pid=pid, instance=instance, used_bytes=used_bytes)
        for (pid, instance), used_bytes in sorted(used.items(), key=lambda item: (item[0][0], item[0][1] or (-1, -1)))
    )


def _known(*amounts: int | None) -> Iterator[int]:
    return (amount for amount in amounts if amount is not None)
