"""Set a card's compute mode: any number of processes may open the card, or only one, which is the MPS server.

The driver keeps the mode in memory, and returns to the default when it is loaded again.
Source: NVML API reference (nvmlDeviceSetComputeMode); needs root.
"""

from pathlib import Path

import pynvml

from hooks.vendors.nvidia.session import session_to
from lading.vocabulary import GpuUuid


def set_exclusive(uuid: GpuUuid, exclusive: bool, *, library: Path | None) -> None:
    """Set EXCLUSIVE_PROCESS, or the default mode. Processes that have opened the card keep it. May be repeated, and can take
    seconds. Raise HostError."""
    mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
    with session_to(f"set the compute mode of {uuid}", library):
        pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid), mode)
