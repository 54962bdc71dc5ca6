"""Define the results of a fit: the devices for each container, or the reason for none.

Tests: tests/unit/central/search/test_isolation.py
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from central.assignment.model import NOTHING_TAKEN, PlacedContainer, Taken
from central.ledger.overlay import Rails
from central.request.reasons import Coded
from central.search.topology import NEXT_TO, Distances
from lading.reasons import Reason


class Missing(Coded):
    """Name the reasons why a node does not fit. The sentences have no numbers, because kube-scheduler groups nodes by the
    sentence; `explain` has the numbers."""

    NO_REPORT = (
        "no-report",
        "node reports no devices",
        "if the node has no devices, nothing. Otherwise set `report = true` in its `hooks.toml` "
        '([operations.md](operations.md#report-to-central), "Report to central").',
    )
    NOT_RECONCILED = "not-reconciled", "node does not know yet which pods hold its devices", Reason.NOT_RECONCILED.remedy
    UNREACHABLE = (
        "unreachable",
        "node is not reachable",
        "look at the node.",
        "The Node is missing or not Ready. What is held there stays held until it answers.",
    )
    REBOOTED = (
        "rebooted",
        "node has booted since its last report",
        "nothing, unless it lasts: then `lading-hooks` does not run there, or cannot report.",
        "`status.nodeInfo.bootID` of the Node is another one: what the report says may be over. What is held there stays held.",
    )
    NO_ISOLATION = (
        "no-isolation",
        "node does not offer the isolation asked for",
        "write one that nodes offer, or add it to `isolations` in the nodes' `hooks.toml`.",
        "`status.isolations` of its NodeDevices has the [isolations](isolation.md) that it offers; without any, `none` alone. "
        "Or its default is `mps`, and a container asks for shares of several cards, of which a program reaches one by MPS.",
    )
    NO_MODEL = (
        "no-model",
        "node has no GPU of the model asked for",
        "write `lading.dev/gpu-model` as `kubectl get nodedevices` shows it.",
    )
    TOO_FEW_GPUS = (
        "too-few-gpus",
        "node has too few GPUs",
        "ask for fewer GPUs, or, if the cards are in MIG mode, for [MIG instances](reference.md#mig-instances) "
        "(`lading.dev/mig-profile`).",
        "A container asks for more than there are. Cards in MIG mode do not count.",
    )
    TOO_FEW_FREE_GPUS = (
        "too-few-free-gpus",
        "too few free GPUs",
        "wait, or ask for fewer.",
        "Other pods hold them, whole or in part: fewer are free than a container requests.",
    )
    NO_CARD_LARGE_ENOUGH = (
        "no-card-large-enough",
        "no GPU is large enough",
        "ask for a smaller share.",
        "Not even an empty GPU has so much memory. The driver's part of a card's memory cannot be assigned.",
    )
    NO_CARD_WITH_ROOM = (
        "no-card-with-room",
        "no single GPU has enough free memory or compute",
        "wait, or ask for a smaller share.",
        "Or fewer GPUs have it than the container requests shares of. Free capacity on several cards does not add up.",
    )
    NODE_TOO_SMALL = (
        "node-too-small",
        "node is too small for the GPUs and GPU shares of all containers",
        "make the pod smaller.",
    )
    SHARES_DO_NOT_FIT = (
        "shares-do-not-fit",
        "too little free for the GPUs and GPU shares of all containers",
        "wait.",
        "Those of each container would fit alone, but not together.",
    )
    KEPT_OFF = (
        "kept-off",
        "sharing constraints exclude the GPUs with free capacity",
        "wait, or write another [`lading.dev/share-…`](reference.md#who-shares-a-card).",
        "The pod must not share these GPUs with their pods, by its labels or theirs.",
    )
    OTHER_ISOLATION = (
        "other-isolation",
        "GPUs with free capacity are shared with another isolation",
        "wait, or write another `lading.dev/isolation`.",
        "A card has one [isolation](isolation.md) at a time.",
    )
    GROUP_FULL = "group-full", "GPU of its affinity group has too little free capacity", "wait until pods on that card end."
    GROUP_ELSEWHERE = "group-elsewhere", "GPU of its affinity group is on another node", "see the line of that node."
    SEARCH_ENDED = (
        "search-ended",
        "placement search limit reached",
        "write equal shares in its containers, or fewer containers with a required topology; they need fewer tries.",
        "Not all combinations of the pod's containers were tried: it may fit, or not.",
    )
    SETS_ENDED = (
        "sets-ended",
        "GPU set search limit reached for one container",
        "ask for fewer GPUs in that container. Only nodes with more than 16 GPUs [have so many "
        "sets](reference.md#which-gpus-and-which-vfs).",
        "Not all sets of the node's GPUs were tried: the pod may fit, or not.",
    )
    TOO_FEW_MIG = (
        "too-few-mig",
        "node has too few MIG instances of the profile asked for",
        "write another profile, exactly as `status.gpus[].mig[]` of the node's NodeDevices has it, or divide a card that way.",
    )
    TOO_FEW_FREE_MIG = "too-few-free-mig", "too few free MIG instances of the profile asked for", "wait, or ask for fewer."
    TOO_FEW_VFS = "too-few-vfs", "node has too few RDMA VFs", "ask for fewer, or make more of them on the node."
    TOO_FEW_FREE_VFS = "too-few-free-vfs", "too few free RDMA VFs", "wait, or ask for fewer."
    TOO_FEW_VFS_OF_SWITCH = (
        "too-few-vfs-of-switch",
        "node has too few RDMA VFs on the switches of its GPUs",
        "ask for fewer VFs or GPUs, or write `lading.dev/rdma-policy: nearest`.",
    )
    TOO_FEW_FREE_VFS_OF_SWITCH = (
        "too-few-free-vfs-of-switch",
        "too few free RDMA VFs on the switches of free GPUs",
        "wait, or take VFs that are farther away: `lading.dev/rdma-policy: nearest`.",
    )
    TOO_FEW_VFS_OF_PF = (
        "too-few-vfs-of-pf",
        "a PF of the node has too few RDMA VFs",
        "ask for fewer, or make more of them on that PF.",
        "`rdma-policy: per-pf` needs more.",
    )
    TOO_FEW_FREE_VFS_OF_PF = (
        "too-few-free-vfs-of-pf",
        "too few free RDMA VFs of a PF",
        "wait.",
        "With `rdma-policy: per-pf` every PF gives a VF, and one has none free.",
    )
    NO_PARTITION = (
        "no-partition",
        "node has no NVSwitch partition of so many GPUs",
        "ask for another number (on an H100 board 1, 2, 4, 8), or write `lading.dev/nvswitch-partition: prefer`.",
    )
    NO_FREE_PARTITION = (
        "no-free-partition",
        "no NVSwitch partition of so many GPUs is free",
        "wait, or take other GPUs too: `lading.dev/nvswitch-partition: prefer`.",
    )
    NOT_WITHIN_SCOPE = (
        "not-within-scope",
        "node has too few GPUs or RDMA VFs within the topology asked for",
        "ask for fewer, or a larger `lading.dev/topology`. A device whose place the node does not know is in no scope.",
        "No switch, NUMA node or socket of the node has so many.",
    )
    NOT_FREE_WITHIN_SCOPE = (
        "not-free-within-scope",
        "too few free GPUs or RDMA VFs within the topology asked for",
        "wait, or ask for a larger scope.",
        "The scope of `lading.dev/topology` is one switch, NUMA node or socket.",
    )
    UNHEALTHY = (
        "unhealthy",
        "devices are unhealthy, dirty, cordoned or used without a grant",
        "look at PROBLEMS of `kubectl get nodedevices`; `lading.dev/cordon` on the object is a cordon.",
        "Without these, the node has too few.",
    )
    NOT_REACHED = (
        "not-reached",
        "node was not evaluated in time; this is retried automatically",
        "nothing. Fewer containers that ask for devices, and equal amounts in them, take less time.",
        "A request takes at most 0.2 s, so that one pod delays no other. Central continues in the background, and makes "
        "kube-scheduler try again once a node fits or all are evaluated.",
    )

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
    distances: Distances = NEXT_TO


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hold the devices that one pod would have on one node, and the amounts taken of each device."""

    containers: Mapping[str, PlacedContainer]
    taken: Taken
    distances: Distances = NEXT_TO


# A pod that requests no device has this placement on every node: its cpu, memory and node rules decide where it may be.
WITHOUT_DEVICES: Final = Placement(containers={}, taken=NOTHING_TAKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFit:
    """Represent the refusal of one node. It is cheap, because thousands of nodes get one; `explain.explain` gives the details
    for one node."""

    missing: Missing


def on_preferred(placement: Placement, rails: Iterable[Rails], place: Callable[[Rails], Placement | NoFit | None]) -> Placement:
    """Return the placement on the first set of rails on which the devices are as close as in `found`; `found` if there is none.
    `place` returns the pod's placement with VFs of the given rails only."""
    for some in rails if placement.taken.vfs else ():
        other = place(some)
        if isinstance(other, Placement) and other.distances <= placement.distances:
            return other
    return placement
