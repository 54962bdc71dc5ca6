"""Define an assignment as values: the devices of each container, and the amounts that the pod takes on the node.

A pod *takes* a device until the pod ends, even while no container uses the device. Init containers run one after the other, so
a pod takes its peak use of a card (phases.py), not the sum over its containers.

Tests: tests/unit/central/assignment/test_phases.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from central.request.model import Sharing
from lading.devices.isolation import IsolationName
from lading.vocabulary import GpuUuid, PciAddress


class Admitted(NamedTuple):
    """Hold the quota of a pod at its Binding, by the pod's labels."""

    quota: str = ""  # empty: the quota of the pod's namespace
    preemptible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGpu:
    uuid: GpuUuid
    bdf: PciAddress
    memory_mib: int | None = None  # memory of a share; if core_percent is None too, the whole card
    core_percent: int | None = None
    core_limit_percent: int | None = None
    isolation: IsolationName | None = None  # isolation of a share; None if the node offers only the isolation none
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
    """Hold the part of a card that a pod takes. If `whole` is true, the pod takes the whole card, regardless of the amounts."""

    memory_mib: int = 0
    core_percent: int = 0
    whole: bool = False
    mig: frozenset[str] = frozenset()  # UUIDs of MIG instances; other pods may take the rest of the card
    sharing: tuple[Sharing, ...] = ()  # labels of the pod's share, sorted; several if the pod's claims differ in them
    isolation: tuple[str, ...] = ()  # isolations of the share but none, sorted; several if the claims differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Hold the devices and amounts that a pod takes on a node."""

    gpus: Mapping[GpuUuid, Part] = field(default_factory=dict)
    vfs: frozenset[PciAddress] = frozenset()


NOTHING_TAKEN: Final = Taken()
