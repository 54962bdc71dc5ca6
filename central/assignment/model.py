"""Define an assignment as values: the devices of each container, and what the pod thereby takes of the node.

A pod *takes* a device until it ends, whichever of its containers uses it when. Init containers take turns, so what a pod takes
of a card is the most that it ever uses there at one time (phases.py), not the sum over its containers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from central.request.model import Sharing
from lading.devices.isolation import IsolationName
from lading.vocabulary import GpuUuid, PciAddress


class Admitted(NamedTuple):
    """Say to which quota a pod belonged by its labels when it was bound."""

    quota: str = ""  # empty: that of its namespace
    preemptible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGpu:
    uuid: GpuUuid
    bdf: PciAddress
    memory_mib: int | None = None  # a share; with core_percent None too, the whole card
    core_percent: int | None = None
    core_limit_percent: int | None = None
    isolation: IsolationName | None = None  # of a share; None: not written, on a node that offers none alone
    mig_uuid: str = ""

    @property
    def whole(self) -> bool:
        return not self.mig_uuid and self.memory_mib is None and self.core_percent is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedVf:
    bdf: PciAddress
    pf: PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContainer:
    gpus: tuple[PlacedGpu, ...] = ()
    vfs: tuple[PlacedVf, ...] = ()


class Part(NamedTuple):
    """Hold what one pod takes of one card. `whole` takes all of it, whatever the amounts say."""

    memory_mib: int = 0
    core_percent: int = 0
    whole: bool = False
    mig: frozenset[str] = frozenset()  # instances, by UUID; the rest of the card is the others'
    sharing: tuple[Sharing, ...] = ()  # labels of its share, sorted; more than one where the pod's claims differ in them
    isolation: tuple[str, ...] = ()  # of its share, nothing for the isolation none; sorted, more than one as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Hold what one pod takes of one node."""

    gpus: Mapping[GpuUuid, Part] = field(default_factory=dict)
    vfs: frozenset[PciAddress] = frozenset()


NOTHING_TAKEN: Final = Taken()
