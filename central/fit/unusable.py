"""Compute how much of the free GPUs an expected pod could not use: the fragmentation of the cluster, as it is reported.

It is the measure of Weng et al., by counting: for a pod of one kind, a card's free part is a *fragment* where that pod could
not take it: its node lacks cpu or memory for it, has not enough whole cards free, or this card is of another model or has less
left than the pod asks. Two things differ from the paper: memory of the node counts, and pods without GPUs, of which all that is
free would be a fragment, are left out.

It takes columns and a kind of pod, and returns milli of cards. A kind is one step of vectors: 0.4 ms for 5,000 nodes of 8
cards.

Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, section 4.
"""

from typing import NamedTuple

import numpy as np

from central.fit.columns import CORE, FREE, FULL, MIB, MODEL, SIZE, Bools, Columns, Ints
from central.fit.demand import mib_of_share
from central.fit.workload import PodKind


class Free(NamedTuple):
    """The free capacity at one moment: later changes of the columns are not in it. It is by row, and except for the first two
    by slot."""

    cpu_milli: Ints
    memory_mib: Ints
    milli: Ints  # 0 on a card of which nothing may be given
    mib: Ints
    core: Ints
    size: Ints
    model: Ints

    @property
    def total_milli(self) -> int:
        return int(self.milli.sum())

    @property
    def whole(self) -> Ints:
        """Return, for each row, the number of cards that are free as a whole."""
        count: Ints = (self.milli == FULL).sum(1)
        return count


def read_free(columns: Columns) -> Free:
    """Return what is free on the nodes that serve and have something free."""
    rows = np.flatnonzero((columns.serving == 0) & (columns.free > 0))
    planes = columns.cards[rows]
    return Free(*columns.left[:, rows], *(planes[:, at] for at in (FREE, MIB, CORE, SIZE, MODEL)))


def unusable_milli(free: Free, kind: PodKind, models: Bools | None) -> int:
    """Return how much of what is free a pod of this kind could not use, in milli of cards; 0 for a pod that asks for no GPU.
    `models` says, by number of a model, whether it is one of the kind's (Columns.models_of); None: any model will do."""
    if kind.cpu_only:
        return 0
    enough = (free.cpu_milli >= kind.cpu_memory.cpu_milli) & (free.memory_mib >= kind.cpu_memory.memory_mib)
    suits = (free.milli > 0) & enough[:, None]
    if models is not None:
        suits &= models[free.model]
    if kind.gpus:
        whole = suits & (free.milli == FULL)
        usable = whole & (whole.sum(1) >= kind.gpus)[:, None]
    else:
        need = mib_of_share(free.size, kind.memory_mib, kind.core_percent)
        usable = suits & (need >= 1) & (free.mib >= need) & (free.core >= (kind.core_percent or 0))
    return free.total_milli - int(free.milli[usable].sum())
