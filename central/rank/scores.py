"""Find the nodes that fit a request, and the best one for a pod's shape, by columns: for the policy fragmentation.

Take the changes of the ledger (columns.Followed), and a Scoring. For a DeviceRequest, return the nodes that fit (counted.py);
with the pod's cpu and memory, the node with the highest score; and on one node, the best card. Nodes that did not change since
the last pod of this shape keep their scores; the others are scored in one step.

A node where the devices of one container would be closer comes first, whatever free capacity remains there. A node that lacks
the pod's cpu or memory comes after all others, but is not refused: kube-scheduler decides about these, and may know better.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from central.ledger.model import NodeCapacity
from central.rank.cached import VERDICTS, CachedVerdicts, Recent
from central.rank.columns import FREE, FULL, Columns, Followed, Ints, first_of, rows_of
from central.rank.counted import FEW, NO_SLOT, CountedVerdicts
from central.rank.fragmentation import Scoring
from central.rank.vectors import FITS, Choices, choices, fits, left_after, wish_of
from central.request.model import CpuMemory, DeviceRequest, Shape
from central.search.demand import Limits

REMEMBERED_SHAPES: Final = 1024  # maximum shapes with cached scores, 8 bytes a node each
CHECK_AFTER: Final = 32  # number of questions between two checks whether the scoring is current
RENEWED: Final = 2048  # nodes rescored by a new scoring in one question: a millisecond; the old one counts until all are
_NOWHERE: Final = np.iinfo(np.int64).min
_SHORT: Final = _NOWHERE + 1  # score where the devices fit, but not cpu or memory
_FIRST: Final = np.zeros(1, np.int64)
_NO_ROWS: Final[Ints] = np.zeros(0, np.int64)
_NEARER: Final = 1 << 32  # more than any difference between two scores


@dataclass(slots=True)
class _Scores:
    """Hold the scores of one shape, by row."""

    scoring: Scoring
    tick: int = -1  # tick of the columns that the scores reflect
    judged: int = 0  # tick of the verdicts that the scores reflect
    scores: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # for one share: the slot of the best card
    cached: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # cached score and slot, by ShapeScores._key
    kinds: int = 0  # number of kinds of nodes for which `cached` is valid

    def make_room(self, rows: int) -> None:
        more = rows - len(self.scores)
        if more > 0:
            self.scores = np.concatenate([self.scores, np.full(more, _NOWHERE)])
            self.slots = np.concatenate([self.slots, np.full(more, NO_SLOT)])


class ShapeScores:
    """Keep the scores of all nodes for one request with a pod's cpu and memory. After a new scoring all nodes are scored again,
    some with each question; the previous scoring is used and updated until then. If only few nodes are to be scored, each
    equivalence class is scored once."""

    def __init__(self, cpu_memory: CpuMemory, verdicts: CountedVerdicts, columns: Columns, scoring: Scoring) -> None:
        self._verdicts = verdicts
        self._cpu_memory = _column(cpu_memory)
        self._columns = columns
        self._now = _Scores(scoring)
        self._coming: _Scores | None = None
        self._renewed = 0  # number of rows with a score in `_coming`

    def catch_up(self, scoring: Scoring) -> None:
        """Score the changed nodes. Call it after the verdicts' own `catch_up`."""
        if scoring is not self._now.scoring:
            self._renew(scoring)
        now, columns = self._now, self._columns
        if (now.tick, now.judged) != (columns.tick, self._verdicts.tick):
            now.make_room(len(columns.changed))
            changed = (columns.changed > now.tick) | (self._verdicts.judged > now.judged)
            rows = self._with_room(changed.nonzero()[0], now)
            if len(rows) > FEW:
                self._score(rows, now)
            elif new := self._recall(rows.tolist(), now):
                self._score(np.array(new), now)
                self._remember(new, now)
            now.tick, now.judged = columns.tick, self._verdicts.tick

    def _recall(self, rows: Sequence[int], scores: _Scores) -> list[int]:
        """Copy the scores of rows that are equal to scored ones, and return the other rows."""
        if scores.kinds != len(self._columns.kinds) or len(scores.cached) >= VERDICTS:
            scores.cached.clear()
            scores.kinds = len(self._columns.kinds)
        rest = []
        for row in rows:
            cached = scores.cached.get(self._key(row))
            if cached is None:
                rest.append(row)
            else:
                scores.scores[row], scores.slots[row] = cached
        return rest

    def _remember(self, rows: Sequence[int], scores: _Scores) -> None:
        for row in rows:
            scores.cached[self._key(row)] = int(scores.scores[row]), int(scores.slots[row])

    def _key(self, row: int) -> Hashable:
        columns = self._columns
        return columns.classes[row], *columns.left[:, row].tolist(), self._verdicts.searched(row)

    def _renew(self, scoring: Scoring) -> None:
        coming, rows = self._coming, len(self._columns.changed)
        if coming is None or coming.scoring is not scoring:
            coming = self._coming = _Scores(scoring, self._columns.tick, self._verdicts.tick)
            self._renewed = 0
        coming.make_room(rows)
        upto = min(self._renewed + RENEWED, rows)
        self._score(self._with_room(np.arange(self._renewed, upto), coming), coming)
        self._renewed = upto
        if upto == rows:
            self._now, self._coming = coming, None

    def best(self, among: Collection[str]) -> str | None:
        """Return the node with the highest score; the first by `Columns.order` among equals, and None if none of these fits."""
        rows = self._top()
        if not len(rows):
            return None
        name = self._columns.names[first_of(self._columns, rows)]
        if name in among:
            return name
        rows = self._top(rows_of(self._columns, among))
        return self._columns.names[first_of(self._columns, rows)] if len(rows) else None

    def ranked(self) -> list[str]:
        """Return all nodes that fit, the best first, and equal ones by `Columns.order`."""
        scores, columns = self._now.scores, self._columns
        rows = (scores > _NOWHERE).nonzero()[0]
        return [columns.names[row] for row in rows[np.lexsort((columns.ranks[rows], -scores[rows]))].tolist()]

    def _top(self, rows: Ints | None = None) -> Ints:
        """Return the rows with the highest score among `rows`; among all rows if it is None."""
        scores = self._now.scores if rows is None else self._now.scores[rows]
        highest = scores.max(initial=_NOWHERE)
        best: Ints = (scores == highest).nonzero()[0] if highest > _NOWHERE else _NO_ROWS
        return best if rows is None else rows[best]

    def slot(self, row: int, scoring: Scoring) -> int | None:
        """Return the best card of the row for one share; None if no current one is cached."""
        now = self._now
        if now.scoring is not scoring or now.tick != self._columns.tick or now.slots[row] == NO_SLOT:
            return None
        return int(now.slots[row])

    def _with_room(self, rows: Ints, into: _Scores) -> Ints:
        """Return the rows that fit and have the pod's cpu and memory. Set the score of rows that do not fit to `_NOWHERE`, and
        of all others to `_SHORT`."""
        into.scores[rows], into.slots[rows] = _NOWHERE, NO_SLOT
        rows = self._verdicts.fitting(rows)
        into.scores[rows] = _SHORT
        having: Ints = rows[(self._columns.left[:, rows] >= self._cpu_memory).all(0)]
        return having

    def _score(self, rows: Ints, into: _Scores) -> None:
        """Score rows that fit and have the pod's cpu and memory; do nothing without rows."""
        if not len(rows):
            return
        columns = self._columns
        result = self._verdicts.choices(rows)
        after = left_after(columns, rows, result, self._cpu_memory)
        scores = into.scoring.scores(columns.states(rows), after, result.of)
        if len(result.slots):
            scores, into.slots[rows] = _best_of_each(columns, rows, result, scores)
        into.scores[rows] = scores - _NEARER * self._verdicts.levels(rows)


def _best_of_each(columns: Columns, rows: Ints, result: Choices, scores: Ints) -> tuple[Ints, Ints]:
    """Return, for each row, the highest score of its choices and the slot with that score; among equal slots, the one with the
    least left. Each row must have a choice."""
    keys = scores * (FULL + 1) - columns.cards[rows[result.of], FREE, result.slots]
    starts = np.concatenate([_FIRST, (result.of[1:] != result.of[:-1]).nonzero()[0] + 1])
    highest = np.maximum.reduceat(keys, starts)
    best = (keys == highest[result.of]).nonzero()[0][::-1]  # reversed, so that the first of equal ones overwrites the others
    slots = np.empty(len(rows), np.int64)
    slots[result.of[best]] = result.slots[best]
    return -(-highest // (FULL + 1)), slots


def _column(cpu_memory: CpuMemory) -> Ints:
    return np.array(cpu_memory, np.int64)[:, None]


class Counting:
    """Keep the columns of all nodes, the scoring, and the scores of the last shapes."""

    def __init__(self, followed: Followed, new_scoring: Callable[[Columns], Scoring]) -> None:
        self.followed = followed
        self.columns = followed.columns
        self._new_scoring = new_scoring
        self._questions = 0
        self.scoring = new_scoring(self.columns)
        self._shapes: Recent[tuple[CachedVerdicts, CpuMemory], ShapeScores] = Recent(REMEMBERED_SHAPES)

    def renew(self) -> None:
        """Replace the scoring, because its inputs have changed."""
        self.scoring = self._new_scoring(self.columns)

    def scores(self, verdicts: CountedVerdicts, cpu_memory: CpuMemory) -> ShapeScores:
        """Return the scores for these verdicts and this cpu and memory, caught up with the verdicts."""
        scores = self._shapes.of((verdicts, cpu_memory), lambda: ShapeScores(cpu_memory, verdicts, self.columns, self.scoring))
        self._questions += 1
        if self._questions % CHECK_AFTER == 0 and not self.scoring.is_current():
            self.renew()
        scores.catch_up(self.scoring)
        return scores

    def with_best_card(self, capacity: NodeCapacity, shape: Shape, verdicts: CachedVerdicts | None) -> NodeCapacity:
        """Return, for a request of one share, the node's free capacity with its best card only; for other requests, return it
        unchanged. `verdicts` are the cached verdicts of the request, if there are any."""
        wish = wish_of(shape.request)
        if wish is None or wish.cards or len(capacity.cards) == 1:
            return capacity
        columns, row = self._row_of(capacity)
        slot = self._cached_slot(columns, row[0], verdicts, shape.cpu_memory)
        if slot is None:
            result = fits(columns, row, wish)
            if result.missing[0] != FITS or columns.needs_search[row[0]]:
                return capacity
            given = choices(columns, row, result.cards, wish)
            after = left_after(columns, row, given, _column(shape.cpu_memory))
            scores = self.scoring.scores(columns.states(row), after, given.of)
            slot = int(_best_of_each(columns, row, given, scores)[1][0])
        planes = columns.cards[row[0], :FREE]
        equal = (planes == planes[:, [slot]]).all(0).nonzero()[0].tolist()
        card = min((capacity.cards[number] for number in equal), key=lambda card: (len(card.gpu.bdf), card.gpu.bdf))
        return replace(capacity, cards=(card,))

    def _cached_slot(self, columns: Columns, row: int, verdicts: CachedVerdicts | None, cpu_memory: CpuMemory) -> int | None:
        scores = self._shapes.get((verdicts, cpu_memory)) if verdicts is not None else None
        return scores.slot(row, self.scoring) if scores is not None and columns is self.columns else None

    def _row_of(self, capacity: NodeCapacity) -> tuple[Columns, Ints]:
        """Return the columns and the row of this `NodeCapacity`; it differs from the ledger's if some pod's claims are left
        out."""
        columns = self.columns
        row = columns.row_of.get(capacity.name, -1)
        cached = columns.capacities[row] if row >= 0 else None
        if cached is not None and cached.cards is capacity.cards and columns.has_load(row, capacity):
            return columns, np.array([row])
        return columns.of_capacity(capacity), np.zeros(1, np.int64)


class ScoredVerdicts(CountedVerdicts):
    def __init__(self, request: DeviceRequest, counting: Counting, *, limits: Limits) -> None:
        super().__init__(request, counting.columns, limits)
        self._counting = counting

    def catch_up(self) -> None:
        self._counting.followed.catch_up()
        super().catch_up()

    def best(self, cpu_memory: CpuMemory, among: Collection[str]) -> str | None:
        return self._counting.scores(self, cpu_memory).best(among)

    def ranked(self, cpu_memory: CpuMemory) -> list[str]:
        return self._counting.scores(self, cpu_memory).ranked()
