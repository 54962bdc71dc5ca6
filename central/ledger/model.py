"""The ledger's values: why something is held, and what a node has left."""

from dataclasses import dataclass
from enum import StrEnum

from lading.nodedevices import Gpu, Pf, Vf
from lading.vocabulary import PodUid


class Claim(StrEnum):
    """Why the ledger believes that a pod holds something; it is free when the last of these is gone."""

    PREDICTED = "predicted"  # the winner of a filter that has not been bound yet; given up after a moment
    NOMINATED = "nominated"  # room that preemption makes for a pod
    RESERVED = "reserved"  # central is binding it, or does not know yet how that ended
    BOUND = "bound"  # the pod's annotation says so
    GRANTED = "granted"  # the node's ledger says so


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """One card as a fit sees it."""

    gpu: Gpu
    free_mib: int
    free_core: int
    pods: int  # that hold something of it
    containers: int  # of these pods, on this card: the load of the `spread` policy
    usable: bool  # healthy, not cordoned, not used by a stranger
    free_mig: tuple[str, ...] = ()  # instances that nobody holds

    @property
    def free(self) -> bool:
        """Nobody holds anything of it, and it may be given."""
        return self.usable and self.pods == 0 and not self.gpu.mig_enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class VfRoom:
    vf: Vf
    pf: Pf
    usable: bool  # healthy, not cordoned
    free: bool  # usable, and nobody holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """One node at one moment: immutable, so that it can be judged away from the ledger, and compared by `version`."""

    name: str
    version: int  # of this node's content in the ledger; grows with each change
    cards: tuple[CardRoom, ...]
    vfs: tuple[VfRoom, ...]
    reported: bool = True  # False: there is no NodeDevices object
    reconciled: bool = True  # the node knows who holds what
    reachable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who a claim is for, in words for people."""

    pod: PodUid
    namespace: str = ""
    name: str = ""
