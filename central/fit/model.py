"""What a fit answers: the devices for each container, or why not."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from central.assignment.model import PlacedContainer, Taken


class Missing(StrEnum):
    """Why a node does not fit, in the words that kube-scheduler shows. Fixed texts: it groups nodes by them, so that there are
    no numbers here (`explain` has them)."""

    NO_REPORT = "node reports no devices"
    NOT_RECONCILED = "node does not know yet who holds its devices"
    UNREACHABLE = "node is not reachable"
    NO_MODEL = "node has no GPU of the model asked for"
    TOO_FEW_GPUS = "node has too few GPUs"
    TOO_FEW_FREE_GPUS = "too few free GPUs"
    NO_CARD_LARGE_ENOUGH = "no GPU is large enough"
    NO_CARD_WITH_ROOM = "no single GPU has enough free memory or compute"
    NODE_TOO_SMALL = "node is too small for the GPUs and GPU shares of all containers"
    SHARES_DO_NOT_FIT = "too little free for the GPUs and GPU shares of all containers"
    SEARCH_ENDED = "pod asks for too many different GPU shares to try every way"
    TOO_FEW_VFS = "node has too few RDMA VFs"
    TOO_FEW_FREE_VFS = "too few free RDMA VFs"
    UNHEALTHY = "devices are unhealthy, cordoned or used without a grant"

    @property
    def unresolvable(self) -> bool:
        """It can never fit here: no eviction would help."""
        return self in _UNRESOLVABLE


_UNRESOLVABLE = frozenset(
    {
        Missing.NO_REPORT,
        Missing.NOT_RECONCILED,
        Missing.UNREACHABLE,
        Missing.NO_MODEL,
        Missing.TOO_FEW_GPUS,
        Missing.NO_CARD_LARGE_ENOUGH,
        Missing.NODE_TOO_SMALL,
        Missing.TOO_FEW_VFS,
        Missing.UNHEALTHY,
    }
)


# The texts of those that an eviction may change.
MAY_FIT_LATER = frozenset(missing.value for missing in Missing if not missing.unresolvable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one pod's devices would be on one node."""

    containers: Mapping[str, PlacedContainer]
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFit:
    """Cheap, for it is answered for thousands of nodes: `why.explain` puts it into words for one."""

    missing: Missing
