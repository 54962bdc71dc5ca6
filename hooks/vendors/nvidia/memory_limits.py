"""Have the driver limit the memory of a card for the processes of a cgroup.

Such a limit covers contexts, allocations and managed memory, by any library, of the cgroup and all cgroups below. The driver
enforces the limit by the kernel's controller `dmem`, or by itself where the kernel has none. The limit ends with the cgroup.
Cards in MIG mode cannot have it.

The call may fail although the driver has it: the kernel may lack the controller, or the cgroups may be read-only. So a test
with a temporary cgroup decides whether a card's driver can limit memory.

Source: NVML API reference (nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1, driver r615); NVIDIA, Multi-Process
Service, "Memory partitioning"; kernel documentation, cgroup-v2, "DMEM".
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pynvml

from hooks.model.inventory import Gpu
from hooks.vendors.nvidia.session import session, session_to
from lading.cgroups import ROOT
from lading.errors import HostError
from lading.nvml import UNSUPPORTED
from lading.vocabulary import GpuUuid

NO_LIMIT: Final = 2**64 - 1
_MIB: Final = 1 << 20
_TRIED_BYTES: Final = 64 * _MIB
_TRIED_CGROUP: Final = "lading-probe"


def limit_memory(uuid: GpuUuid, cgroup: Path, limit_mib: int | None, *, library: Path | None) -> None:
    """Limit the memory of a card for a cgroup; None removes the limit. May be repeated, and can take seconds. Raise HostError
    if the driver refuses, or reports another limit afterwards."""
    limit_bytes = NO_LIMIT if limit_mib is None else limit_mib * _MIB
    with session_to(f"limit the memory of GPU {uuid}", library):
        _limit(pynvml.nvmlDeviceGetHandleByUUID(uuid), cgroup, limit_bytes)


def _limit(handle: Any, cgroup: Path, limit_bytes: int) -> None:
    path = os.fsencode(cgroup)
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=path, softLimit=0, hardLimit=limit_bytes)
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=path)
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    if limits.hardLimit != limit_bytes:
        raise HostError(f"the driver was given a limit of {limit_bytes} bytes for {cgroup}, and says {limits.hardLimit}")


@dataclass(slots=True)
class LimitProbe:
    """Test for which cards the driver can limit memory. A success, or an unsupported call, holds for as long as this driver is
    loaded; after another failure, the next call of `scan` tests again."""

    required: bool = False  # the configuration requires the driver's limits, so that a failure is a problem
    _tested: dict[tuple[str, GpuUuid], str] = field(default_factory=dict)  # errors, or empty, by driver version and card

    def scan(
        self, host_root: Path, gpus: Sequence[Gpu], version: str, *, library: Path | None
    ) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Return the cards with `limits_memory` set, and a problem for each failed card if the limits are required."""
        cards = [gpu.uuid for gpu in gpus if not gpu.mig_enabled]
        result = {card: self._tested[version, card] for card in cards if (version, card) in self._tested}
        if untried := [card for card in cards if card not in result]:
            tried = _try(host_root, untried, library)
            self._tested |= {(version, card): one.why for card, one in tried.items() if one.lasts}
            result |= {card: one.why for card, one in tried.items()}
        limited = tuple(replace(gpu, limits_memory=result.get(gpu.uuid) == "") for gpu in gpus)
        text = (f"the driver does not limit the memory of GPU {card}: {reason}" for card, reason in result.items() if reason)
        return limited, tuple(text) if self.required else ()


class _Tried(NamedTuple):
    why: str  # error of the test; empty if the driver limits memory
    lasts: bool  # the result holds until another driver is loaded


def _try(host_root: Path, cards: Sequence[GpuUuid], library: Path | None) -> dict[GpuUuid, _Tried]:
    try:
        with _cgroup_to_try(host_root) as cgroup, session(library):
            return {card: _try_card(card, cgroup) for card in cards}
    except (pynvml.NVMLError, HostError, OSError) as e:
        return dict.fromkeys(cards, _Tried(str(e), lasts=False))


def _try_card(card: GpuUuid, cgroup: Path) -> _Tried:
    try:
        _limit(pynvml.nvmlDeviceGetHandleByUUID(card), cgroup, _TRIED_BYTES)
    except HostError as e:
        return _Tried(str(e), lasts=False)
    except pynvml.NVMLError as e:
        return _Tried(f"NVML: {e}", lasts=e.value in UNSUPPORTED)
    return _Tried("", lasts=True)


@contextlib.contextmanager
def _cgroup_to_try(host_root: Path) -> Iterator[Path]:
    """Make a cgroup until the end of the block. Raise OSError or HostError."""
    root = host_root / ROOT
    if not (root / "cgroup.controllers").exists():
        raise HostError(f"{root} is no cgroup v2")
    cgroup = root / _TRIED_CGROUP
    cgroup.mkdir(exist_ok=True)
    try:
        yield cgroup
    finally:
        with contextlib.suppress(OSError):  # a leftover cgroup is empty, and is reused the next time
            cgroup.rmdir()
