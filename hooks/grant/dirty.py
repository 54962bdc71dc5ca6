"""Check that a card which no grant holds is free of what an earlier user left behind.

Only a new grant of a whole card is checked: shares have neighbours, a container that is created again left its own memory, and
the containers of one pod share a card. The amount of memory decides, where the driver tells it. A process alone does not:
daemons of the host (DCGM, MPS) open cards that no container uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hooks.model.holding import listed
from hooks.model.inventory import Gpu
from lading.vocabulary import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanness:
    """The rule for how clean a card must be before it is granted whole."""

    tolerance_mib: int | None = None  # None: not checked
    processes: Mapping[GpuUuid, Sequence[str]] = field(default_factory=dict)  # of the host, in words


def find_dirt(gpu: Gpu, cleanness: Cleanness) -> str:
    """Describe what uses the card; empty if the card is clean enough."""
    if cleanness.tolerance_mib is None or gpu.used_mib is None or gpu.used_mib <= cleanness.tolerance_mib:
        return ""
    processes = cleanness.processes.get(gpu.uuid, ())
    by = f"by {listed(processes)}" if processes else "by no process that the driver names"
    return f"{gpu.used_mib} MiB of it are in use {by}, and the node tolerates {cleanness.tolerance_mib}"
