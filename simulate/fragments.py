"""Compute by tables the free GPU capacity that pods of the workload could not use: the F of *Beware of Fragmentation*.

For one type of pod, a card's free part is a fragment if the pod could not take it. Either the node lacks cpu or enough free
cards, or is of another model, or this card has too little left. F of a node is the mean over the typical pods, weighted by
frequency, in milli of a card; for a pod without GPUs, all free capacity is a fragment.

So each card counts `free * (1 - P)`, where P is the share of typical pods that could take it. P depends on the node's cpu and
model, on the card's free part, and for whole cards on the number of free cards. Two tables give P without a loop over types:
`_sharing[model, cpu, free]` and `_whole[model, cpu, cards free]`.

Source: section 4 of the paper, and pkg/utils/frag.go of its simulator: memory of the node does not count; typical are the most
frequent types until they make 95 % of the pods.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from simulate.cluster import Floats, Numbers
from simulate.trace import FULL, PERCENT, TracePod

_POPULAR: Final = 0.95
_STEPS: Final = FULL // PERCENT  # number of percents in which a card's free part is indexed

Typical = tuple[int, int, int, tuple[str, ...]]  # cpu milli, share, whole cards, models


def typical_pods(pods: Sequence[TracePod]) -> dict[Typical, float]:
    """Return the most frequent types of pods with their frequencies, which add up to 1. Of equally frequent types, the larger
    comes first, as in the original simulator."""
    counts: dict[Typical, int] = {}
    for pod in pods:
        kind = pod.cpu_milli, pod.share, pod.whole, pod.models
        counts[kind] = counts.get(kind, 0) + 1
    chosen: dict[Typical, int] = {}
    for kind, count in sorted(counts.items(), key=lambda one: (one[1], one[0]), reverse=True):
        if sum(chosen.values()) >= _POPULAR * len(pods):
            break
        chosen[kind] = count
    return {kind: count / sum(chosen.values()) for kind, count in chosen.items()}


class Fragments:
    """Compute the fragments of nodes. `models` and `most_cards` are those of the cluster's nodes."""

    def __init__(self, typical: Mapping[Typical, float], models: Sequence[str], most_cards: int) -> None:
        self._cpu: Numbers = np.unique(np.array([cpu for cpu, *_ in typical], dtype=np.int64))
        levels = len(self._cpu) + 1  # level of a node: the number of requested cpu amounts that it has
        self._sharing: Floats = np.zeros((len(models), levels, _STEPS + 1))
        self._whole: Floats = np.zeros((len(models), levels, most_cards + 1))
        for (cpu, share, whole, wanted), weight in typical.items():
            level = int(np.searchsorted(self._cpu, cpu, side="right"))
            for number, model in enumerate(models):
                if not wanted or model in wanted:
                    if share:
                        self._sharing[number, level:, share // PERCENT :] += weight
                    elif 0 < whole <= most_cards:
                        self._whole[number, level:, whole:] += weight

    def of_nodes(self, model: Numbers, cpu_milli: Numbers, free: Numbers) -> Floats:
        """Return the fragment of each node, in milli. `free` is [node, card] in milli, negative for absent cards."""
        level = self.levels(cpu_milli)
        free = np.maximum(free, 0)
        full = free == FULL
        whole = self._whole[model, level, full.sum(axis=1)]
        usable = self._sharing[model[:, None], level[:, None], free // PERCENT] + full * whole[:, None]
        lost: Floats = (free * (1.0 - usable)).sum(axis=1)
        return lost

    def levels(self, cpu_milli: Numbers) -> Numbers:
        """Return the table index for nodes with this much cpu left."""
        return self._cpu.searchsorted(cpu_milli, side="right")

    def started(self, model: int, level: Numbers, free: Numbers) -> Floats:
        """Return the capacity of each partly used card that the expected pods could not use, in thousandths of a card."""
        lost: Floats = free * (1.0 - self._sharing[model, level, free // PERCENT])
        return lost

    def unstarted(self, model: int, level: Numbers, cards: Numbers) -> Floats:
        """Return the capacity of `cards` free cards that the expected pods could not use, in thousandths of a card."""
        lost: Floats = cards * FULL * (1.0 - self._sharing[model, level, _STEPS] - self._whole[model, level, cards])
        return lost
