"""Compute, for many nodes, how far apart the whole cards of the best choice for a simple request (vectors.py) would be.

Take columns, rows that fit, and the suitable cards of each row. Return for each row the level (topology.Apart) that the exact
search would find there. The level depends only on the positions of these cards, so that nodes of one topology share it,
whatever else is held there.
"""

import numpy as np

from central.fit.columns import Bools, Columns, Ints
from central.fit.joint import DeviceMasks, Query, find
from central.fit.topology import FARTHEST, Layout
from central.request.model import PartitionPolicy


def levels_of(columns: Columns, rows: Ints, cards: Bools, count: int, partition: PartitionPolicy | None) -> Ints:
    """Return the level of each row. `cards`, by row and slot, are the suitable cards, at least `count` in each row; `count` is
    the requested number."""
    query = Query(count, partition=partition, first=True)  # the first choice already has the least level
    known: dict[tuple[Layout, bytes], int] = {}
    levels = np.empty(len(rows), np.int64)
    for number, (row, its) in enumerate(zip(rows.tolist(), map(bytes, cards), strict=True)):
        layout = columns.layouts[row]
        level = known.get((layout, its))
        if level is None:
            level = known[layout, its] = _level(layout, its, query)
        levels[number] = level
    return levels


def _level(layout: Layout, cards: bytes, query: Query) -> int:
    topology = layout.topology
    mask = sum(cards[slot] << number for number, slot in enumerate(layout.cards))
    found = find(topology, query, DeviceMasks((1 << query.cards) - 1 if topology.even else mask)).found
    return FARTHEST if found is None else found.apart.level  # None: the search reached its limit, on a very large node
