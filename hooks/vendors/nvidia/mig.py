"""Name the profile of a MIG instance as NVIDIA does: "1g.10gb", "1c.3g.40gb", "1g.10gb+me".

The driver's name of an instance ends with its profile: "NVIDIA H100 80GB HBM3 MIG 1g.10gb". Otherwise the profile is computed
from the instance's slices and memory, without media engines ("+me"), which only the driver's name shows.

A size is rounded as NVIDIA's tools do: the instance's part of the card's memory in eighths, times the card's memory in whole
GiB. So an instance of 9,856 MiB counts as 10 GB.

Source: NVML API reference, nvmlDeviceGetName and nvmlDeviceGetAttributes_v2; NVIDIA MIG user guide, "Device names".
"""

import re
from typing import Any, Final

import pynvml

from hooks.vendors.nvidia.session import UNKNOWN
from lading.devices.identity import MIG_PROFILE_SHAPE
from lading.nvml import ask

_NAMED: Final = re.compile(rf" MIG ({MIG_PROFILE_SHAPE})$")
_EIGHTHS: Final = 8


def read_profile(handle: Any, *, card_mib: int) -> str:
    """Return the profile's name; empty if unknown. Needs an open NVML session. `card_mib`: all memory of the instance's card.
    Raise NVMLError."""
    return ask(lambda: _read_profile(handle, card_mib), "", absent=UNKNOWN)


def _read_profile(handle: Any, card_mib: int) -> str:
    if named := _NAMED.search(str(pynvml.nvmlDeviceGetName(handle))):
        return named[1]
    has = pynvml.nvmlDeviceGetAttributes_v2(handle)
    return name_profile(
        compute_slices=has.computeInstanceSliceCount,
        gpu_slices=has.gpuInstanceSliceCount,
        memory_mib=has.memorySizeMB,
        card_mib=card_mib,
    )


def name_profile(*, compute_slices: int, gpu_slices: int, memory_mib: int, card_mib: int) -> str:
    """Compute the profile's name; empty for an invalid size."""
    if min(compute_slices, gpu_slices, memory_mib, card_mib) < 1:
        return ""
    eighths = -(-memory_mib * _EIGHTHS // card_mib)
    card_gib = -(-card_mib // 1024)
    gigabytes = max(1, (2 * eighths * card_gib + _EIGHTHS) // (2 * _EIGHTHS))
    compute = f"{compute_slices}c." if compute_slices != gpu_slices else ""
    return f"{compute}{gpu_slices}g.{gigabytes}gb"
