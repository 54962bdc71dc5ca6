"""Keep the free capacity of every node, as arrays, and where each kind of pod fits, while pods are placed and end.

The cluster is the referee of a replay. The placements of every policy are booked here, whatever the policy records itself, and
a placement beyond the free capacity ends the replay. A pod fits by the cpu and memory that kube-scheduler checks, the model of
cards, and a card for its share or enough free whole cards. VFs and the positions of devices count if a pod requests them
(places.py).
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from central.request.model import PartitionPolicy
from lading.vocabulary import PciAddress
from simulate.places import Places
from simulate.trace import FULL, TraceNode, TracePod

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
NO_CARD: Final = -1


class Kinds:
    """Hold the distinct kinds of pods of one workload as columns; a pod is identified by the number of its kind."""

    def __init__(self, kinds: Sequence[TracePod], models: Sequence[str]) -> None:
        self.all = tuple(kinds)
        self.cpu_milli: Numbers = np.array([kind.cpu_milli for kind in kinds], dtype=np.int64)
        self.memory_mib: Numbers = np.array([kind.memory_mib for kind in kinds], dtype=np.int64)
        self.share: Numbers = np.array([kind.share for kind in kinds], dtype=np.int64)
        self.whole: Numbers = np.array([kind.whole for kind in kinds], dtype=np.int64)
        # The array is [model, kind]. A pod without a card has no models, and suits nodes of any model.
        self.suits = np.array([[not kind.models or model in kind.models for kind in kinds] for model in models])


class OverCapacityError(AssertionError):
    """Report a policy that placed a pod beyond the free capacity."""


class Placed(NamedTuple):
    node: int
    cards: Sequence[int]
    vfs: Collection[PciAddress] = ()


class Cluster:
    """Book the pods of one replay. `nodes` are in the order of the run. A node is identified by its index in `nodes`, a card by
    its index on the node. `partition` is the cluster's setting for NVSwitch partitions."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        kinds: Sequence[TracePod],
        partition: PartitionPolicy = PartitionPolicy.PREFER,
    ) -> None:
        models = sorted({node.model for node in nodes})
        width = max((card + 1 for node in nodes for card in node.cards), default=0)
        self.nodes = tuple(nodes)
        self.kinds = Kinds(kinds, models)
        self.models = tuple(models)
        self.model: Numbers = np.array([models.index(node.model) for node in nodes], dtype=np.int64)
        self.cpu_milli: Numbers = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory_mib: Numbers = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.partition = partition
        self.free: Numbers = np.full((len(nodes), width), NO_CARD, dtype=np.int64)  # free milli of each card, [node, card]
        for number, node in enumerate(nodes):
            self.free[number, node.cards] = FULL
        self.capacity = int(sum(node.gpus for node in nodes) * FULL)
        self.allocated = 0
        self._places, self._somewhere = self._where_it_counts(partition)
        self._fits = np.zeros((len(kinds), len(nodes)), dtype=np.bool_)
        self._changed = set(range(len(nodes)))  # nodes changed since `fits` was last read

    def percent(self, milli: float) -> float:
        return 100 * milli / self.capacity

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Return whether a pod fits on a node, as an array [kind, node]."""
        for number in self._changed:
            self._judge(number)
        self._changed.clear()
        return self._fits

    def free_cards(self, node: int, kind: int) -> list[int]:
        """Return the cards that suit this kind of pod, lowest first: with enough left for its share, or wholly free."""
        least = self.kinds.all[kind].share or FULL
        return [card for card, free in enumerate(self.free[node].tolist()) if free >= least]

    @property
    def vf_allocation(self) -> float | None:
        """Return the allocated percentage of the usable VFs; None if no pod requests a VF, or there is none."""
        places = self._places
        if places is None or not places.vfs or not any(kind.vfs for kind in self.kinds.all):
            return None
        return 100 * places.vfs_taken / places.vfs

    def take(self, node: int, kind: int, cards: Sequence[int], vfs: Collection[PciAddress] = ()) -> None:
        """Book a pod that was placed on this node. Raise OverCapacityError."""
        request = self.kinds.all[kind]
        each = request.gpu_milli
        enough = self.cpu_milli[node] >= request.cpu_milli and self.memory_mib[node] >= request.memory_mib
        cards_do = len(cards) == len(set(cards)) == request.gpus and all(self.free[node, card] >= each for card in cards)
        suits = enough and cards_do and self.kinds.suits[self.model[node], kind]
        if not suits or not (self._places.take(node, request, cards, vfs) if self._places else not vfs):
            with_vfs = f" with VFs {sorted(vfs)}" if vfs else ""
            raise OverCapacityError(f"{request} was placed on cards {list(cards)} of {self.nodes[node].name}{with_vfs}")
        self.cpu_milli[node] -= request.cpu_milli
        self.memory_mib[node] -= request.memory_mib
        for card in cards:
            self.free[node, card] -= each
        self.allocated += request.milli
        self._changed.add(node)

    def give_back(self, node: int, kind: int, cards: Sequence[int], vfs: Collection[PciAddress] = ()) -> None:
        """Book the end of a pod that was placed on this node."""
        request = self.kinds.all[kind]
        self.cpu_milli[node] += request.cpu_milli
        self.memory_mib[node] += request.memory_mib
        for card in cards:
            self.free[node, card] += request.gpu_milli
        if self._places is not None:
            self._places.give_back(node, vfs)
        self.allocated -= request.milli
        self._changed.add(node)

    def _judge(self, node: int) -> None:
        kinds, free = self.kinds, self.free[node]
        self._fits[:, node] = (
            (kinds.cpu_milli <= self.cpu_milli[node])
            & (kinds.memory_mib <= self.memory_mib[node])
            & (kinds.share <= free.max(initial=0))
            & (kinds.whole <= np.count_nonzero(free == FULL))
            & kinds.suits[self.model[node]]
        )
        for kind in self._somewhere:
            if self._fits[kind, node] and self._places is not None:
                self._fits[kind, node] = self._places.fits(node, kinds.all[kind], self.free_cards(node, kind))

    def _where_it_counts(self, partition: PartitionPolicy) -> tuple[Places | None, Sequence[int]]:
        """Return the places, and the numbers of the kinds of pods for which the position of a device counts; mostly there are
        none."""
        if partition is not PartitionPolicy.HONOR and not any(kind.is_somewhere for kind in self.kinds.all):
            return None, ()
        places = Places(self.nodes, partition)
        return places, [number for number, kind in enumerate(self.kinds.all) if places.concern(kind)]
