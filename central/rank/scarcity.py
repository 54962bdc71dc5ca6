"""Compute the weights of pods for which few places are left in the cluster.

A pod that requests several cards waits if no node has that many left. A pod that names models waits if others took their cards.
So the weight of such pods depends on the free capacity. Take a workload, and the free capacity of the cluster. Return a factor
for each *group*:

Pods of several cards are one group if they request equal numbers of cards, models, cpu and memory. A node that suits one group
may not suit another. Every number of cards above one counts as if its pods had a mass of at least OFTEN. A group counts more if
fewer places are left for it. A place is a node with that many wholly free cards, and with the cpu and the memory. The needed
places are the number of such pods that arrive while the other cards are given away.

Other pods that name the same models are one group. They count more if a smaller part of the free capacity is on cards of these
models.

New factors mean that all nodes are scored again, which pays off only if a factor is off by more than APART.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from central.rank.columns import FULL
from central.rank.workload import MASS, ExpectedWorkload
from central.request.model import NO_CPU_MEMORY, CpuMemory

OFTEN: Final = MASS // 40
# Numbers of cards for which places are kept free even if no pod of the workload requests them.
NUMBERS: Final = (2, 4, 8)
LEAST: Final = 0.3
MOST: Final = 4.0
NEEDED: Final = 2.0  # free places for each needed one; with more, such pods are not scarce
RAREST: Final = 64.0  # maximum factor of pods that name models, compared with pods that accept all cards
MAX_GROUPED: Final = 32  # maximum kinds of pods of several cards grouped by cpu and memory: each is counted at each check
MIN_RATIO: Final = 2.0


class PodGroupKind(NamedTuple):
    gpus: int  # number of cards; 1: one card, or a share of one
    models: tuple[str, ...] = ()  # accepted models; empty: all
    cpu_memory: CpuMemory = NO_CPU_MEMORY


Factors = Mapping[PodGroupKind, float]


class FreeCapacity(Protocol):
    """Report the free capacity of the cluster."""

    def free_milli(self, models: tuple[str, ...] = ()) -> int:
        """Return the free milli of all cards of these models; of all models if none is given."""

    def places(self, gpus: int, models: tuple[str, ...], cpu_memory: CpuMemory) -> int:
        """Return how many pods with this request could be placed, one after the other."""


class WorkloadGroups:
    def __init__(self, workload: ExpectedWorkload) -> None:
        """Read the workload. Of the kinds of pods with several cards, only the MAX_GROUPED most frequent are grouped by cpu
        and memory."""
        several = [one for one, _ in workload.kinds if one.gpus > 1]
        cpu_memory = {one: one.cpu_memory for one in several[:MAX_GROUPED]}
        self.of_kind = [
            PodGroupKind(one.gpus, one.models, cpu_memory.get(one, NO_CPU_MEMORY))
            if one.gpus > 1
            else PodGroupKind(1, one.models)
            for one, _ in workload.kinds
        ]
        self.mass: Counter[PodGroupKind] = Counter()
        self.of_number: Counter[int] = Counter()
        self._cards = 0.0  # mean number of cards that a pod takes, times MASS
        for (one, mass), group in zip(workload.kinds, self.of_kind, strict=True):
            self._cards += mass * one.cards
            self.mass[group] += mass
            self.of_number[group.gpus] += mass

    def weigh(self, free: FreeCapacity) -> Factors:
        """Return the factor of each group."""
        all_free = free.free_milli()
        return {
            group: self._of_several(group, all_free, free) if group.gpus > 1 else _of_models(group, all_free, free)
            for group in self.mass
        }

    def _of_several(self, group: PodGroupKind, all_free: int, free: FreeCapacity) -> float:
        mass = self.mass[group]
        needed = mass / self._cards * all_free / FULL
        scarce = NEEDED * (needed + 0.5) / max(1, free.places(*group))
        return min(MOST, max(LEAST * mass / self.of_number[group.gpus], scarce))


def _of_models(group: PodGroupKind, all_free: int, free: FreeCapacity) -> float:
    return min(RAREST, max(FULL, all_free) / max(FULL, free.free_milli(group.models))) if group.models else 1.0


def differ(some: Factors, others: Factors) -> bool:
    """Return whether any factor differs by more than APART between the two mappings, which must be of one workload."""
    return any(not 1 / MIN_RATIO <= some[group] / others[group] <= MIN_RATIO for group in some)
