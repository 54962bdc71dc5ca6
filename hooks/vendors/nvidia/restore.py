"""Set a card's compute mode, and its clocks and power limit after its last grant has ended, by the node's configuration.

The compute mode says whether any number of processes may open the card, or only one, which is the MPS server. The driver keeps
it in memory, and returns to the default when it is loaded again. NVML cannot read a lock of clocks, so they are always
unlocked. A value that a card does not support was not changed either.

Source: NVML API reference, "Device Commands". The commands need root.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from hooks.vendors.nvidia.session import session_to
from lading.nvml import UNSUPPORTED
from lading.vocabulary import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimit:
    watts: int | None = None  # watts to set; None: the card's default limit


def restore(cards: Iterable[GpuUuid], *, library: Path | None, clocks: bool, power_limit: PowerLimit | None) -> tuple[str, ...]:
    """Set clocks and power limits of these cards. Return a message for each failed step. Raise HostError."""
    problems: list[str] = []
    with session_to("set clocks and power limits", library):
        for uuid in sorted(cards):
            problems += _restore_card(uuid, clocks=clocks, power_limit=power_limit)
    return tuple(problems)


def _restore_card(uuid: GpuUuid, *, clocks: bool, power_limit: PowerLimit | None) -> Iterator[str]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as e:
        yield f"cannot set clocks and power limit of GPU {uuid}: NVML: {e}"
        return
    steps: list[tuple[str, Callable[[], object]]] = []
    if clocks:
        steps += [
            ("unlock the clocks", lambda: pynvml.nvmlDeviceResetGpuLockedClocks(handle)),
            ("unlock the memory's clocks", lambda: pynvml.nvmlDeviceResetMemoryLockedClocks(handle)),
            ("reset the application clocks", lambda: pynvml.nvmlDeviceResetApplicationsClocks(handle)),
        ]
    if power_limit is not None:
        steps.append(("set the power limit", lambda: _set_power_limit(handle, power_limit)))
    for what, step in steps:
        try:
            step()
        except pynvml.NVMLError as e:
            if e.value not in UNSUPPORTED:
                yield f"cannot {what} of GPU {uuid}: NVML: {e}"


def _set_power_limit(handle: Any, limit: PowerLimit) -> None:
    wanted = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) if limit.watts is None else 1000 * limit.watts
    if pynvml.nvmlDeviceGetPowerManagementLimit(handle) != wanted:
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, wanted)


def set_exclusive(uuid: GpuUuid, exclusive: bool, *, library: Path | None) -> None:
    """Set EXCLUSIVE_PROCESS, or the default mode. Processes that have opened the card keep it. May be repeated, and can take
    seconds. Raise HostError."""
    mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
    with session_to(f"set the compute mode of {uuid}", library):
        pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid), mode)
