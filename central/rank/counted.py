"""Judge all nodes for one request, by columns: which fit, why others do not, and the free capacity after each choice.

Take columns (columns.py) and a request. Simple requests are judged by counting in columns (vectors.py; `levels_of` computes how
far apart the cards would be). Other requests, and any request on a node that needs it, are judged by the exact search
(cached.py). The verdicts are cached and caught up with the columns. If few nodes changed, those equal to judged nodes are
looked up.

Tests: tests/unit/central/rank/test_vectors.py
"""

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from central.ledger.model import NodeCapacity
from central.rank.cached import VERDICTS, CachedVerdicts, ScoredNode
from central.rank.columns import Bools, Columns, Ints, left_of
from central.rank.equivalence import equivalence_for
from central.rank.vectors import FITS, NUMBER_OF, REASONS, Choices, choices, fits, wish_of
from central.request.model import DeviceRequest, PartitionPolicy, Policy
from central.search.demand import Limits, read_demand
from central.search.fit import fit
from central.search.joint import DeviceMasks, Query, find
from central.search.placement import Missing, NoFit, Placement
from central.search.topology import FARTHEST, Layout

FEW: Final = 16  # maximum rows looked up one by one: a vectorized step costs some dozens of calls, whatever its length
NO_SLOT: Final = -1
_UNSEEN: Final = -1


class CountedVerdicts(CachedVerdicts):
    """Cache the verdicts for one request, under the policy fragmentation. `fits` has no scores, because they also depend on the
    pod's cpu and memory (scores.py)."""

    def __init__(self, request: DeviceRequest, columns: Columns, limits: Limits) -> None:
        demand = read_demand(request, Policy.FRAGMENTATION, limits)

        def search(capacity: NodeCapacity, brief: bool) -> ScoredNode | Missing:
            result = fit(capacity, request, policy=Policy.FRAGMENTATION, limits=limits, brief=brief)
            return result.missing if isinstance(result, NoFit) else _scored(capacity, result)

        super().__init__(search, equivalence_for(demand))
        self.wish = wish_of(request)
        self._partition = demand.partition
        self._columns = columns
        self._observed = -1
        self._names: list[str] = []  # node names, by row
        self._missing: Ints = np.zeros(0, np.int64)  # FITS, or the number of the reason, by row
        self._cards = np.zeros((0, 0), np.bool_)  # suitable cards, if the row was counted, by row and slot
        self._left: Ints = np.zeros((0, 0), np.int64)  # milli left, if the row was searched, by row and slot
        self._levels: Ints = np.zeros(0, np.int64)  # level of the devices (topology.Distances), by row that fits
        self.judged: Ints = np.zeros(0, np.int64)  # the tick of the last search, by row
        self.tick = 0
        self._counted: dict[int, tuple[int, int, Bools]] = {}  # reason, level, suitable cards, by Columns.classes

    def catch_up(self) -> None:
        columns = self._columns
        if self._observed == columns.tick:
            return
        self._make_room()
        rows = columns.changed_since(self._observed, devices_only=True)
        self._rename(rows.tolist())
        if len(rows) > FEW or self.wish is None:
            self._search_rows_of(rows)
        elif new := self._recall(rows.tolist()):
            self._search_rows_of(np.array(new))
            self._remember(new)
        self._observed = columns.tick  # set last, once all changed rows are judged

    def _recall(self, rows: Sequence[int]) -> list[int]:
        """Copy the results of rows that are equal to counted ones, and return the other rows."""
        columns, rest = self._columns, []
        for row in rows:
            known = self._counted.get(columns.classes[row])
            if known is None:
                rest.append(row)
                continue
            missing, self._levels[row], self._cards[row] = known
            self._close(columns.names[row])
            self._set(row, missing)
        return rest

    def _remember(self, rows: Sequence[int]) -> None:
        if len(self._counted) >= VERDICTS:
            self._counted.clear()
        needs_search = self._needs_search
        for row in rows:
            if not needs_search[row]:
                known = int(self._missing[row]), int(self._levels[row]), self._cards[row].copy()
                self._counted[self._columns.classes[row]] = known

    def searched(self, row: int) -> Hashable:
        """Return the search's result for this row beyond the columns; None if the row was counted."""
        if not self._needs_search[row]:
            return None
        return int(self._missing[row]), int(self._levels[row]), self._left[row].tobytes()

    def _search_rows_of(self, rows: Ints) -> None:
        searched = self._needs_search[rows]
        self._search_rows(rows[searched])
        rows = rows[~searched]
        if self.wish is None or not len(rows):
            return
        missing, self._cards[rows] = fits(self._columns, rows, self.wish)
        if self.wish.cards > 1:
            fitting = rows[missing == FITS]
            self._levels[fitting] = levels_of(self._columns, fitting, self._cards[fitting], self.wish.cards, self._partition)
        names = self._columns.names
        for row in () if self.complete else rows.tolist():
            self._close(names[row])
        turned = missing != self._missing[rows]
        self._missing[rows] = missing
        for row, reason in zip(rows[turned].tolist(), missing[turned].tolist(), strict=True):
            self._show(row, reason)

    def fitting(self, rows: Ints) -> Ints:
        fitting: Ints = rows[self._missing[rows] == FITS]
        return fitting

    def choices(self, rows: Ints) -> Choices:
        """Return the free capacity after every choice of cards on these rows, in the order of the rows; all rows must fit."""
        columns = self._columns
        searched = self._needs_search[rows]
        if self.wish is None or searched.all():
            return Choices(np.arange(len(rows)), self._left[rows])
        if not searched.any():
            return choices(columns, rows, self._cards[rows], self.wish)
        plain, others = np.flatnonzero(~searched), np.flatnonzero(searched)
        counted = choices(columns, rows[plain], self._cards[rows[plain]], self.wish)
        of = np.concatenate([plain[counted.of], others])
        free = np.concatenate([counted.free, self._left[rows[others]]])
        order = np.argsort(of, kind="stable")
        if not len(counted.slots):
            return Choices(of[order], free[order])
        slots = np.concatenate([counted.slots, np.full(len(others), NO_SLOT)])
        return Choices(of[order], free[order], slots[order])

    def levels(self, rows: Ints) -> Ints:
        """Return how far apart the devices of one container would be on these rows (topology.Distances); all rows must fit."""
        levels: Ints = self._levels[rows]
        return levels

    @property
    def _needs_search(self) -> Bools:
        """Return, for each row, whether counting cannot judge it for this request."""
        columns = self._columns
        if self.wish is None:
            return np.ones(len(columns.needs_search), np.bool_)
        honor = self._partition is PartitionPolicy.HONOR
        return columns.needs_search | columns.partitioned if honor else columns.needs_search

    def _rename(self, rows: Sequence[int]) -> None:
        """Drop the nodes whose rows are now empty, or have another node."""
        for row in rows:
            name = self._columns.names[row]
            if name != self._names[row]:
                if self._names[row]:
                    self._drop(self._names[row])
                self._names[row], self._missing[row] = name, _UNSEEN

    def _make_room(self) -> None:
        had, size, slots = len(self._missing), len(self._columns.changed), self._columns.slots
        if had == size and self._cards.shape[1] == slots:
            return
        missing, cards, left, levels = self._missing, self._cards, self._left, self._levels
        self._counted.clear()
        self._names += [""] * (size - had)
        self._missing = np.full(size, _UNSEEN)
        self._cards = np.zeros((size, slots), np.bool_)
        self._left = np.zeros((size, slots), np.int64)
        self._levels = np.zeros(size, np.int64)
        self.judged = np.concatenate([self.judged, np.zeros(size - had, np.int64)])
        self._missing[:had] = missing
        self._levels[:had] = levels
        self._cards[:had, : cards.shape[1]] = cards
        self._left[:had, : left.shape[1]] = left

    def _search_rows(self, rows: Ints) -> None:
        for row in rows.tolist():
            capacity = self._columns.capacities[row]
            if capacity is None:
                self._set(row, NUMBER_OF[Missing.NO_REPORT])
            else:
                self._missing[row] = NUMBER_OF[Missing.NOT_REACHED]
                self._leave_open(capacity.name, capacity)

    def _decided(self, name: str, verdict: ScoredNode | Missing) -> None:
        row = self._columns.row_of.get(name, _UNSEEN)
        if not 0 <= row < len(self._missing):
            return  # the node was deleted since; the next catch-up drops it
        self.tick += 1
        self.judged[row] = self.tick
        if isinstance(verdict, Missing):
            self._set(row, NUMBER_OF[verdict])
            return
        self._left[row] = 0
        self._left[row, : len(verdict.left)] = verdict.left
        (self._levels[row],) = verdict.score
        self._set(row, FITS)

    def _set(self, row: int, missing: int) -> None:
        if self._missing[row] != missing:
            self._missing[row] = missing
            self._show(row, missing)

    def _show(self, row: int, missing: int) -> None:
        if name := self._columns.names[row]:
            self._store(name, REASONS[missing])


def _scored(capacity: NodeCapacity, placed: Placement) -> ScoredNode:
    left = tuple(left_of(card, placed.taken.gpus.get(card.gpu.uuid)) for card in capacity.cards)
    return ScoredNode((placed.distances.level,), left)


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
    result = find(topology, query, DeviceMasks((1 << query.cards) - 1 if topology.even else mask)).choice
    return FARTHEST if result is None else result.distances.level  # None: the search reached its limit, on a very large node
