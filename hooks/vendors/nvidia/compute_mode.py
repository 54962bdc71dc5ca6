"""The compute mode of a card: whether several processes may open it by themselves, or one alone, as MPS wants it.

It is in the driver's memory: it is back to the default when the driver is loaded again.
Source: NVML API reference (nvmlDeviceSetComputeMode); needs root.
"""

from pathlib import Path

import pynvml

from hooks.vendors.nvidia.session import session_to
from lading.vocabulary import GpuUuid


def set_exclusive(uuid: GpuUuid, exclusive: bool, *, library: Path | None) -> None:
    """Set EXCLUSIVE_PROCESS, or the default. Processes that have the card keep it. May be repeated, and can take seconds. Raise
    HostError."""
    mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
    with session_to(f"set the compute mode of {uuid}", library):
        pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid), mode)
