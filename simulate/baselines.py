"""Define baselines to compare with, for replays only: random, first fit, best fit, dot product, and FGD as published.

Each policy works as in its authors' simulator. Scores are whole numbers from 0 to 100. Among equal scores, the first node in
the order of the run is taken, so that ties become first-fit.

    random       any node that fits, any card with enough left for a share
    first-fit    the first node that fits, its first card with enough left for a share
    best-fit     the least left of cpu and of GPUs, each relative to the largest node (128 cores, 8 GPUs) and half of the
                 score; a share goes to the card with the least left
    dot-product  the least product of the pod's request and the node's free capacity, of cpu and GPUs relative to the largest
                 node (Grandl et al., Tetris, SIGCOMM 2014, as in the paper's simulator); a share as in best-fit
    fgd          int(100 * sigmoid(d / 1000)), d the milli of fragment (fragments.py) that the placement removes; a share
                 goes to the card with the largest d

Whole cards are always the lowest ones. The baselines ignore VFs and the positions of cards. Source: pkg/simulator/plugin of the
paper's simulator.
"""

import random
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simulate.cluster import Cluster, Floats, Numbers, Placed
from simulate.fragments import Fragments
from simulate.trace import FULL

HIGHEST: Final = 100
_LARGEST_CPU_MILLI: Final = 128_000
_LARGEST_GPU_MILLI: Final = 8 * FULL


class Player(Protocol):
    def place(self, kind: int, pod: int) -> Placed | None:
        """Return the placement of a pod of this kind; None if it fits nowhere. `pod` is the pod's number, the same in each call
        for it."""

    def ended(self, pod: int) -> None:
        """Record that a placed pod has ended."""

    def changed(self, node: int) -> None:
        """Record that the cluster's bookings of this node changed."""


class _Fit:
    """Place pods by the bookings of the cluster alone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def place(self, kind: int, pod: int) -> Placed | None:
        nodes = np.flatnonzero(self._cluster.fits[kind])
        return self._choose(kind, nodes) if len(nodes) else None

    def _choose(self, kind: int, nodes: Numbers) -> Placed:
        raise NotImplementedError

    def _on(self, node: int, kind: int) -> Placed:
        """Place whole cards on the lowest ones, and a share on the card with the least left."""
        cluster, request = self._cluster, self._cluster.kinds.all[kind]
        cards = cluster.free_cards(node, kind)
        if request.share:
            return Placed(node, [min(cards, key=lambda card: int(cluster.free[node, card]))])
        return Placed(node, cards[: request.whole])

    def ended(self, pod: int) -> None:
        pass

    def changed(self, node: int) -> None:
        pass


class RandomFit(_Fit):
    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster)
        self._chance = random.Random(f"placement {seed}")  # noqa: S311

    def _choose(self, kind: int, nodes: Numbers) -> Placed:
        node = int(self._chance.choice(nodes))
        cards = self._cluster.free_cards(node, kind)
        request = self._cluster.kinds.all[kind]
        return Placed(node, [self._chance.choice(cards)] if request.share else cards[: request.whole])


class FirstFit(_Fit):
    def _choose(self, kind: int, nodes: Numbers) -> Placed:
        request, node = self._cluster.kinds.all[kind], int(nodes[0])
        return Placed(node, self._cluster.free_cards(node, kind)[: request.gpus])


class _Packing(_Fit):
    """Choose the first node with the highest score of cpu and GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._gpu_milli: Numbers = np.maximum(cluster.free, 0).sum(axis=1)

    def _choose(self, kind: int, nodes: Numbers) -> Placed:
        cluster, request = self._cluster, self._cluster.kinds.all[kind]
        cpu, gpu = cluster.cpu_milli[nodes] / _LARGEST_CPU_MILLI, self._gpu_milli[nodes] / _LARGEST_GPU_MILLI
        good = self._score(request.cpu_milli / _LARGEST_CPU_MILLI, request.milli / _LARGEST_GPU_MILLI, cpu, gpu)
        return self._on(int(nodes[(good * HIGHEST).astype(np.int64).argmax()]), kind)

    def _score(self, asked_cpu: float, asked_gpu: float, cpu: Floats, gpu: Floats) -> Floats:
        """Return a score from 0 to 1 for each node. `cpu` and `gpu` are the free amounts there; all amounts are parts of the
        largest node."""
        raise NotImplementedError

    def changed(self, node: int) -> None:
        self._gpu_milli[node] = np.maximum(self._cluster.free[node], 0).sum()


class BestFit(_Packing):
    def _score(self, asked_cpu: float, asked_gpu: float, cpu: Floats, gpu: Floats) -> Floats:
        return 1.0 - ((cpu - asked_cpu) + (gpu - asked_gpu)) / 2


class DotProduct(_Packing):
    def _score(self, asked_cpu: float, asked_gpu: float, cpu: Floats, gpu: Floats) -> Floats:
        return 1.0 - (asked_cpu * cpu + asked_gpu * gpu) / 2


class Fgd:
    """Keep a score for each kind and node; after a change, only the changed node is scored again, for all kinds at once."""

    def __init__(self, cluster: Cluster, fragments: Fragments) -> None:
        self._cluster = cluster
        self._fragments = fragments
        kinds = cluster.kinds
        self._sharing = np.flatnonzero(kinds.share)
        self._others = np.flatnonzero(kinds.share == 0)
        self._scores: NDArray[np.int8] = np.zeros(cluster.fits.shape, dtype=np.int8)
        self._cards: NDArray[np.int8] = np.zeros(cluster.fits.shape, dtype=np.int8)  # best card for a share
        for node in range(len(cluster.nodes)):
            self.changed(node)

    def place(self, kind: int, pod: int) -> Placed | None:
        node = int(self._scores[kind].argmax())  # the first node with the highest score
        if not self._cluster.fits[kind, node]:
            return None
        request = self._cluster.kinds.all[kind]
        if request.share:
            return Placed(node, [int(self._cards[kind, node])])
        return Placed(node, self._cluster.free_cards(node, kind)[: request.whole])

    def ended(self, pod: int) -> None:
        pass

    def changed(self, node: int) -> None:
        cluster = self._cluster
        kinds, model = cluster.kinds, int(cluster.model[node])
        fits = cluster.fits[:, node]
        free = np.maximum(cluster.free[node], 0)
        full, cards = free == FULL, int(np.count_nonzero(free == FULL))
        alone = slice(node, node + 1)
        before = self._fragments.of_nodes(cluster.model[alone], cluster.cpu_milli[alone], cluster.free[alone])[0]
        level = self._fragments.levels(cluster.cpu_milli[node] - kinds.cpu_milli)  # cpu levels after placing each kind here
        started = self._fragments.started(model, level[:, None], free) * ~full  # [kind, card]
        kept = started.sum(axis=1)

        some = self._others
        left = np.maximum(cards - kinds.whole[some], 0)
        after = kept[some] + self._fragments.unstarted(model, level[some], left)
        self._scores[some, node] = np.where(fits[some], whole_score(before - after), -1)

        some = self._sharing
        rest = free - kinds.share[some, None]  # [kind, card]
        its_level = level[some, None]
        after = (
            kept[some, None]
            - started[some]
            + self._fragments.started(model, its_level, np.maximum(rest, 0))
            + self._fragments.unstarted(model, its_level, np.maximum(cards - full, 0))
        )
        scores = np.where(rest >= 0, whole_score(before - after), -1)
        best = scores.argmax(axis=1)  # `argmax` takes the lowest of the best cards
        self._cards[some, node] = best
        self._scores[some, node] = np.where(fits[some], scores[np.arange(len(some)), best], -1)


def whole_score(less_milli: Floats) -> NDArray[np.int8]:
    """Return FGD's score of placements that reduce the fragment by `less_milli`, rounded down to a whole number."""
    return (HIGHEST / (1.0 + np.exp(-less_milli / 1000.0))).astype(np.int8)
