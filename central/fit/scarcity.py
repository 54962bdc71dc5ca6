"""Compute the weight of the pods for which few places are left.

A pod that asks for several cards waits if no node has so many left, and one that names models waits if others took their cards.
So the weight of such pods depends on what is free now. It takes a workload, and what is free in the cluster. It returns a
factor for each *group*:

Pods of several cards are one group if they ask for as many cards, the same models, and the same cpu and memory: a node that
does for some of them may not do for others. Every number of cards above one counts as if it came OFTEN at least, and counts
more if fewer places for a group are left. A place is a node with that many cards that no pod holds, and with the cpu and the
memory; as many places are needed as such pods come while the rest of the cards is given away.

Other pods that name the same models are one group. They count the more, the smaller the part of what is free that is on cards
of these models: their share of the pods, to these cards alone.

New factors mean that all nodes are scored again, which pays off only if some factor is off by more than APART.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from central.fit.columns import FULL
from central.fit.workload import MASS, Workload
from central.request.model import NO_CPU_MEMORY, CpuMemory

OFTEN: Final = MASS // 40
# Numbers of cards for which room is kept even if no known pod asks for them.
NUMBERS: Final = (2, 4, 8)
LEAST: Final = 0.3
MOST: Final = 4.0
NEEDED: Final = 2.0  # places for each that is needed, from which on nothing is scarce
RAREST: Final = 64.0  # times as much, at most, as if all cards did
MOST_TOLD: Final = 32  # kinds of pods that ask for several cards, by cpu and memory: each is counted anew with each look
APART: Final = 2.0


class Group(NamedTuple):
    gpus: int  # 1: one, or a share of one
    models: tuple[str, ...] = ()  # any of these; none: all
    cpu_memory: CpuMemory = NO_CPU_MEMORY


Factors = Mapping[Group, float]


class Free(Protocol):
    """Tell what is free in the cluster."""

    def free_milli(self, models: tuple[str, ...] = ()) -> int:
        """Return what is free of all cards of these models, in milli. No models: of any model."""

    def places(self, gpus: int, models: tuple[str, ...], cpu_memory: CpuMemory) -> int:
        """Return how many pods that ask for this could be placed, one by one."""


class Groups:
    """The groups of the pods of a workload."""

    def __init__(self, workload: Workload) -> None:
        """Read the workload. Of the kinds that ask for several cards, only the MOST_TOLD most frequent ones are told apart by
        cpu and memory."""
        several = [one for one, _ in workload.kinds if one.gpus > 1]
        told = {one: one.cpu_memory for one in several[:MOST_TOLD]}
        self.of_kind = [
            Group(one.gpus, one.models, told.get(one, NO_CPU_MEMORY)) if one.gpus > 1 else Group(1, one.models)
            for one, _ in workload.kinds
        ]
        self.mass: Counter[Group] = Counter()
        self.of_number: Counter[int] = Counter()
        self._cards = 0.0  # that a pod takes, times MASS
        for (one, mass), group in zip(workload.kinds, self.of_kind, strict=True):
            self._cards += mass * one.cards
            self.mass[group] += mass
            self.of_number[group.gpus] += mass

    def weigh(self, free: Free) -> Factors:
        """Return the factor of each group."""
        all_free = free.free_milli()
        return {
            group: self._of_several(group, all_free, free) if group.gpus > 1 else _of_models(group, all_free, free)
            for group in self.mass
        }

    def _of_several(self, group: Group, all_free: int, free: Free) -> float:
        mass = self.mass[group]
        needed = mass / self._cards * all_free / FULL
        scarce = NEEDED * (needed + 0.5) / max(1, free.places(*group))
        return min(MOST, max(LEAST * mass / self.of_number[group.gpus], scarce))


def _of_models(group: Group, all_free: int, free: Free) -> float:
    return min(RAREST, max(FULL, all_free) / max(FULL, free.free_milli(group.models))) if group.models else 1.0


def differ(some: Factors, others: Factors) -> bool:
    """Return whether any factor differs by more than APART between the two, which are of one workload."""
    return any(not 1 / APART <= some[group] / others[group] <= APART for group in some)
