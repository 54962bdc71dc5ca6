"""Check that a card without a grant is clean for a new tenant, before the whole card or its first share is granted.

Only a card without a holder is checked: other shares use the card too, a container that is created again may find its own
memory, and containers of one pod may share a card. Values that the driver does not report are not checked. The node's
configuration can switch off each check.

A row of memory or a page that waits for a reset of the card makes the card unhealthy, also under a holder
(vendors/nvidia/nvml.py).

Tests: tests/unit/hooks/grant/test_choose.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from hooks.model.grant import listed
from hooks.model.inventory import Gpu
from lading.vocabulary import GpuUuid

_COMM: Final = 15  # characters of a process's name that the kernel keeps (proc_pid_comm(5))


class CleanCheck(StrEnum):
    PROCESSES = "processes"
    MEMORY = "memory"
    COMPUTE_MODE = "compute-mode"
    ECC = "ecc"


class HostProcess(NamedTuple):
    """Represent a process of the host, in no pod."""

    pid: int
    name: str

    @property
    def text(self) -> str:
        return f"process {self.pid} ({self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRule:
    """Hold the node's rule for how a card must be left, from its configuration."""

    checks: frozenset[CleanCheck] = frozenset()
    tolerance_mib: int = 0
    tolerated: frozenset[str] = frozenset()  # names of the host's processes that may be on a card


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanness:
    """Hold the node's rule, and facts about the cards that are not in the inventory."""

    rule: CleanRule = field(default_factory=CleanRule)
    processes: Mapping[GpuUuid, Sequence[HostProcess]] = field(default_factory=dict)
    waits: Mapping[GpuUuid, str] = field(default_factory=dict)  # cards that are being handed over, and what is missing
    since: Mapping[GpuUuid, int] = field(default_factory=dict)  # Unix time, of those that were seen to be dirty


def find_dirt(gpu: Gpu, cleanness: Cleanness) -> str:
    """Describe why the card is dirty, and since when; empty if the card is clean."""
    if wait := cleanness.waits.get(gpu.uuid):
        return wait
    result = "; ".join(filter(None, (_CHECKS[check](gpu, cleanness) for check in CleanCheck if check in cleanness.rule.checks)))
    since = cleanness.since.get(gpu.uuid)
    return add_since(result, since) if result and since else result


def add_since(text: str, since: int) -> str:
    """Return the text with the Unix time since when the card is dirty."""
    return f"{text}; since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _left_processes(gpu: Gpu, cleanness: Cleanness) -> str:
    tolerated = {name[:_COMM] for name in cleanness.rule.tolerated}
    left = [one.text for one in cleanness.processes.get(gpu.uuid, ()) if one.name[:_COMM] not in tolerated]
    return f"{listed(left)} of the host computes on it" if left else ""


def _left_memory(gpu: Gpu, cleanness: Cleanness) -> str:
    tolerance_mib = cleanness.rule.tolerance_mib
    if gpu.used_mib is None or gpu.used_mib <= tolerance_mib:
        return ""
    processes = cleanness.processes.get(gpu.uuid, ())
    by = f"by {listed([one.text for one in processes])}" if processes else "by no process that the driver names"
    return f"{gpu.used_mib} MiB of it are in use {by}, and the node tolerates {tolerance_mib}"


def _compute_mode(gpu: Gpu, _: Cleanness) -> str:
    return f"its compute mode is {gpu.compute_mode} (nvidia-smi -i {gpu.uuid} -c DEFAULT)" if gpu.compute_mode else ""


def _memory_errors(gpu: Gpu, _: Cleanness) -> str:
    """Describe uncorrected errors since the last grant. A card with such an error is not granted until a reset, which sets the
    count to zero. So all counted errors are newer than the last grant."""
    count = gpu.uncorrected_errors
    return f"it had {count} uncorrected memory errors since its last reset (nvidia-smi -i {gpu.uuid} -r)" if count else ""


_CHECKS: Final[Mapping[CleanCheck, Callable[[Gpu, Cleanness], str]]] = {
    CleanCheck.PROCESSES: _left_processes,
    CleanCheck.MEMORY: _left_memory,
    CleanCheck.COMPUTE_MODE: _compute_mode,
    CleanCheck.ECC: _memory_errors,
}
