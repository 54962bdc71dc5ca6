"""Keep the use of each device of one node as a sum, so that a change costs O(devices of the pod), whatever else is on the node.
A hold is the devices of one pod on the node by all of its claims together.

Tests: tests/unit/central/ledger/test_overlay.py
"""

from collections.abc import Mapping
from typing import NamedTuple

from central.assignment.model import Part, Taken
from central.assignment.sharing import UNLABELLED, Labels
from lading.devices.isolation import IsolationName
from lading.devices.share import FULL_CORE
from lading.vocabulary import GpuUuid, PciAddress


class Hold(NamedTuple):
    taken: Taken
    containers: Mapping[GpuUuid, int]  # containers on a card, unless one


class CardUse(NamedTuple):
    memory_mib: int = 0
    core_percent: int = 0
    whole: int = 0  # number of pods that hold the whole card; more than one is a clash
    pods: int = 0
    containers: int = 0
    mig: tuple[str, ...] = ()  # sorted MIG instances, once for each holding pod
    labels: tuple[Labels, ...] = ()  # sorted labels of each pod that has labels
    isolated: tuple[tuple[str, ...], ...] = ()  # sorted `Part.isolation` of each pod that has one

    def plus(self, part: Part, containers: int) -> "CardUse":
        return CardUse(
            self.memory_mib + part.memory_mib,
            self.core_percent + part.core_percent,
            self.whole + part.whole,
            self.pods + 1,
            self.containers + containers,
            tuple(sorted((*self.mig, *part.mig))) if part.mig else self.mig,
            tuple(sorted((*self.labels, part.sharing))) if part.sharing else self.labels,
            tuple(sorted((*self.isolated, part.isolation))) if part.isolation else self.isolated,
        )

    def minus(self, part: Part, containers: int) -> "CardUse":
        mig = list(self.mig)
        for instance in part.mig:
            mig.remove(instance)
        labels, isolated = list(self.labels), list(self.isolated)
        if part.sharing:
            labels.remove(part.sharing)
        if part.isolation:
            isolated.remove(part.isolation)
        return CardUse(
            self.memory_mib - part.memory_mib,
            self.core_percent - part.core_percent,
            self.whole - part.whole,
            self.pods - 1,
            self.containers - containers,
            tuple(mig),
            tuple(labels),
            tuple(isolated),
        )

    def clash(self, usable_mib: int | None) -> bool | None:
        """Return True if an exclusive part of the card has two owners, False if shares add up to too much, None otherwise.
        `usable_mib` None: not known."""
        if self.pods < 2:
            return None
        if self.whole or len(set(self.mig)) < len(self.mig):
            return True
        too_much = self.core_percent > FULL_CORE or (usable_mib is not None and self.memory_mib > usable_mib)
        return False if too_much else None

    @property
    def sharers(self) -> tuple[Labels, ...]:
        """Return the different labels of the card's pods, an empty label included; empty if no pod has labels."""
        if not self.labels:
            return ()
        return tuple(sorted({*self.labels, UNLABELLED} if len(self.labels) < self.pods else set(self.labels)))

    @property
    def isolations(self) -> tuple[str, ...]:
        """Return the different isolations of the card's shares; empty if all are `none`."""
        if not self.isolated:
            return ()
        names = {name for isolation in self.isolated for name in isolation}
        return tuple(sorted({*names, IsolationName.NONE} if len(self.isolated) < self.pods else names))


UNUSED = CardUse()


class Usage:
    """Keep the devices in use; a free device has no entry."""

    __slots__ = ("cards", "vfs")

    def __init__(self, cards: Mapping[GpuUuid, CardUse] | None = None, vfs: Mapping[PciAddress, int] | None = None) -> None:
        self.cards: dict[GpuUuid, CardUse] = dict(cards or {})
        self.vfs: dict[PciAddress, int] = dict(vfs or {})  # VF → number of holding pods; more than one is a clash

    def copy(self) -> "Usage":
        return Usage(self.cards, self.vfs)

    def add(self, hold: Hold) -> None:
        for uuid, part in hold.taken.gpus.items():
            self.cards[uuid] = self.cards.get(uuid, UNUSED).plus(part, hold.containers.get(uuid, 1))
        for vf in hold.taken.vfs:
            self.vfs[vf] = self.vfs.get(vf, 0) + 1

    def remove(self, hold: Hold) -> None:
        for uuid, part in hold.taken.gpus.items():
            left = self.cards[uuid].minus(part, hold.containers.get(uuid, 1))
            if left.pods:
                self.cards[uuid] = left
            else:
                del self.cards[uuid]
        for vf in hold.taken.vfs:
            self.vfs[vf] -= 1
            if not self.vfs[vf]:
                del self.vfs[vf]
