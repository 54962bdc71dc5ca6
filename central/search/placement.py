"""Define the results of a fit: the devices for each container, or the reason for none.

Tests: tests/unit/central/search/test_isolation.py
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from central.assignment.model import NOTHING_TAKEN, PlacedContainer, Taken
from central.ledger.rails import Rails
from central.request.reasons import Coded
from central.search.topology import NEXT_TO, Apart


class Missing(Coded):
    """Name the reasons why a node does not fit. The sentences have no numbers, because kube-scheduler groups nodes by the
    sentence; `explain` has the numbers."""

    NO_REPORT = "no-report", "node reports no devices"
    NOT_RECONCILED = "not-reconciled", "node does not know yet which pods hold its devices"
    UNREACHABLE = "unreachable", "node is not reachable"
    REBOOTED = "rebooted", "node has booted since its last report"
    NO_ISOLATION = "no-isolation", "node does not offer the isolation asked for"
    NO_MODEL = "no-model", "node has no GPU of the model asked for"
    TOO_FEW_GPUS = "too-few-gpus", "node has too few GPUs"
    TOO_FEW_FREE_GPUS = "too-few-free-gpus", "too few free GPUs"
    NO_CARD_LARGE_ENOUGH = "no-card-large-enough", "no GPU is large enough"
    NO_CARD_WITH_ROOM = "no-card-with-room", "no single GPU has enough free memory or compute"
    NODE_TOO_SMALL = "node-too-small", "node is too small for the GPUs and GPU shares of all containers"
    SHARES_DO_NOT_FIT = "shares-do-not-fit", "too little free for the GPUs and GPU shares of all containers"
    KEPT_OFF = "kept-off", "sharing constraints exclude the GPUs with free capacity"
    OTHER_ISOLATION = "other-isolation", "GPUs with free capacity are shared with another isolation"
    GROUP_FULL = "group-full", "GPU of its affinity group has too little free capacity"
    GROUP_ELSEWHERE = "group-elsewhere", "GPU of its affinity group is on another node"
    SEARCH_ENDED = "search-ended", "placement search limit reached"
    SETS_ENDED = "sets-ended", "GPU set search limit reached for one container"
    TOO_FEW_MIG = "too-few-mig", "node has too few MIG instances of the profile asked for"
    TOO_FEW_FREE_MIG = "too-few-free-mig", "too few free MIG instances of the profile asked for"
    TOO_FEW_VFS = "too-few-vfs", "node has too few RDMA VFs"
    TOO_FEW_FREE_VFS = "too-few-free-vfs", "too few free RDMA VFs"
    TOO_FEW_VFS_OF_SWITCH = "too-few-vfs-of-switch", "node has too few RDMA VFs on the switches of its GPUs"
    TOO_FEW_FREE_VFS_OF_SWITCH = "too-few-free-vfs-of-switch", "too few free RDMA VFs on the switches of free GPUs"
    TOO_FEW_VFS_OF_PF = "too-few-vfs-of-pf", "a PF of the node has too few RDMA VFs"
    TOO_FEW_FREE_VFS_OF_PF = "too-few-free-vfs-of-pf", "too few free RDMA VFs of a PF"
    NO_PARTITION = "no-partition", "node has no NVSwitch partition of so many GPUs"
    NO_FREE_PARTITION = "no-free-partition", "no NVSwitch partition of so many GPUs is free"
    NOT_WITHIN_SCOPE = "not-within-scope", "node has too few GPUs or RDMA VFs within the topology asked for"
    NOT_FREE_WITHIN_SCOPE = "not-free-within-scope", "too few free GPUs or RDMA VFs within the topology asked for"
    UNHEALTHY = "unhealthy", "devices are unhealthy, dirty, cordoned or used without a grant"
    NOT_REACHED = "not-reached", "node was not evaluated in time; this is retried automatically"

    @property
    def unresolvable(self) -> bool:
        """Return whether the pod can never fit here: no eviction would help."""
        return self in _UNRESOLVABLE

    @property
    def undecided(self) -> bool:
        """Return whether a limit was reached: the pod may fit, or not."""
        return self in {Missing.SEARCH_ENDED, Missing.SETS_ENDED, Missing.NOT_REACHED}


_UNRESOLVABLE = frozenset(
    {
        Missing.NO_REPORT,
        Missing.NOT_RECONCILED,
        Missing.UNREACHABLE,
        Missing.REBOOTED,
        Missing.NO_ISOLATION,
        Missing.NO_MODEL,
        Missing.TOO_FEW_GPUS,
        Missing.NO_CARD_LARGE_ENOUGH,
        Missing.NODE_TOO_SMALL,
        Missing.TOO_FEW_MIG,
        Missing.TOO_FEW_VFS,
        Missing.TOO_FEW_VFS_OF_SWITCH,
        Missing.TOO_FEW_VFS_OF_PF,
        Missing.NO_PARTITION,
        Missing.NOT_WITHIN_SCOPE,
        Missing.UNHEALTHY,
    }
)


BY_SHOWN: Final = {missing.shown: missing for missing in Missing}
# The shown texts of the reasons that an eviction may remove. NOT_REACHED is left out: such a node may fit as it is.
MAY_FIT_LATER = frozenset(
    missing.shown for missing in Missing if not missing.unresolvable and missing is not Missing.NOT_REACHED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDevices:
    """Hold the devices of one pod on one node, by container, in the order of the request."""

    containers: Mapping[str, PlacedContainer]
    apart: Apart = NEXT_TO


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hold the devices that one pod would have on one node, and the amounts taken of each device."""

    containers: Mapping[str, PlacedContainer]
    taken: Taken
    apart: Apart = NEXT_TO


# A pod that requests no device has this placement on every node: its cpu, memory and node rules decide where it may be.
WITHOUT_DEVICES: Final = Placement(containers={}, taken=NOTHING_TAKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFit:
    """Represent the refusal of one node. It is cheap, because thousands of nodes get one; `explain.explain` gives the details
    for one node."""

    missing: Missing


def on_preferred(found: Placement, rails: Iterable[Rails], place: Callable[[Rails], Placement | NoFit | None]) -> Placement:
    """Return the placement on the first set of rails on which the devices are as close as in `found`; `found` if there is none.
    `place` returns the pod's placement with VFs of the given rails only."""
    for some in rails if found.taken.vfs else ():
        other = place(some)
        if isinstance(other, Placement) and other.apart <= found.apart:
            return other
    return found
