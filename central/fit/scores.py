"""Find which nodes fit a request, and the best one for a pod's shape, under the policy fragmentation: by columns.

It takes what changed in the ledger (columns.Followed), and a Scoring. For a DeviceRequest it returns which nodes fit
(counted.py); with the pod's cpu and memory, the node with the highest score; and on a node, the card with the highest score.
Nodes that did not change since the last pod of this shape keep their scores; the others are scored in one step.

A node where the devices of one container would be closer comes first, whatever it leaves behind.
That a node lacks the cpu or the memory of the pod is kube-scheduler's to say, which may know better: such a node comes after
all others, and is not refused.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from central.fit.cached import VERDICTS, CachedVerdicts, Recent
from central.fit.columns import FREE, FULL, Columns, Followed, Ints, first_of, rows_of
from central.fit.counted import FEW, NO_SLOT, CountedVerdicts
from central.fit.demand import Limits
from central.fit.fragmentation import Scoring
from central.fit.vectors import FITS, Choices, choices, fits, left_after, wish_of
from central.ledger.model import NodeRoom
from central.request.model import CpuMemory, DeviceRequest, Shape

REMEMBERED_SHAPES: Final = 1024  # each costs 8 bytes a node
LOOK_AFTER: Final = 32  # questions, whether the cluster is still scored by what it is now
RENEWED: Final = 2048  # nodes that one question scores anew by a new scoring: a millisecond; until all are, the old one counts
_NOWHERE: Final = np.iinfo(np.int64).min
_SHORT: Final = _NOWHERE + 1  # the devices fit, cpu or memory do not
_FIRST: Final = np.zeros(1, np.int64)
_NO_ROWS: Final[Ints] = np.zeros(0, np.int64)
_NEARER: Final = 1 << 32  # more than any difference between two scores


@dataclass(slots=True)
class _Scores:
    """The scores of one shape, by row."""

    scoring: Scoring
    seen: int = -1  # the tick to which they are caught up
    judged: int = 0  # the same, of the verdicts
    scores: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of one share: the card by which it has that score
    known: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # both, by all that they depend on
    kinds: int = 0  # of nodes, to which that holds

    def make_room(self, rows: int) -> None:
        more = rows - len(self.scores)
        if more > 0:
            self.scores = np.concatenate([self.scores, np.full(more, _NOWHERE)])
            self.slots = np.concatenate([self.slots, np.full(more, NO_SLOT)])


class ShapeScores:
    """The scores of the nodes for one request with a pod's other requests. A new scoring scores all nodes again, some of them
    with each question. Until it has them all, the scoring before it counts, and still follows changes. Where only few nodes are
    to be scored, those of one class are scored once."""

    def __init__(self, cpu_memory: CpuMemory, verdicts: CountedVerdicts, columns: Columns, scoring: Scoring) -> None:
        self._verdicts = verdicts
        self._cpu_memory = _column(cpu_memory)
        self._columns = columns
        self._now = _Scores(scoring)
        self._coming: _Scores | None = None
        self._renewed = 0  # rows of it

    def catch_up(self, scoring: Scoring) -> None:
        """Score what changed. The verdicts must be caught up."""
        if scoring is not self._now.scoring:
            self._renew(scoring)
        now, columns = self._now, self._columns
        if (now.seen, now.judged) != (columns.tick, self._verdicts.tick):
            now.make_room(len(columns.changed))
            changed = (columns.changed > now.seen) | (self._verdicts.judged > now.judged)
            rows = self._with_room(changed.nonzero()[0], now)
            if len(rows) > FEW:
                self._score(rows, now)
            elif new := self._recall(rows.tolist(), now):
                self._score(np.array(new), now)
                self._remember(new, now)
            now.seen, now.judged = columns.tick, self._verdicts.tick

    def _recall(self, rows: Sequence[int], scores: _Scores) -> list[int]:
        """Copy the scores of rows that are equal to scored ones. Return the other rows."""
        if scores.kinds != len(self._columns.kinds) or len(scores.known) >= VERDICTS:
            scores.known.clear()
            scores.kinds = len(self._columns.kinds)
        rest = []
        for row in rows:
            known = scores.known.get(self._key(row))
            if known is None:
                rest.append(row)
            else:
                scores.scores[row], scores.slots[row] = known
        return rest

    def _remember(self, rows: Sequence[int], scores: _Scores) -> None:
        for row in rows:
            scores.known[self._key(row)] = int(scores.scores[row]), int(scores.slots[row])

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
        """Return the node with the highest score, the first if several have it; None if none of these fits."""
        rows = self._top()
        if not len(rows):
            return None
        name = self._columns.names[first_of(self._columns, rows)]
        if name in among:
            return name
        rows = self._top(rows_of(self._columns, among))
        return self._columns.names[first_of(self._columns, rows)] if len(rows) else None

    def ranked(self) -> list[str]:
        """Return all nodes that fit, the best first, of equal ones the first."""
        scores, columns = self._now.scores, self._columns
        rows = (scores > _NOWHERE).nonzero()[0]
        return [columns.names[row] for row in rows[np.lexsort((columns.ranks[rows], -scores[rows]))].tolist()]

    def _top(self, rows: Ints | None = None) -> Ints:
        """Return the rows that have the highest score, of all or of these."""
        scores = self._now.scores if rows is None else self._now.scores[rows]
        highest = scores.max(initial=_NOWHERE)
        best: Ints = (scores == highest).nonzero()[0] if highest > _NOWHERE else _NO_ROWS
        return best if rows is None else rows[best]

    def slot(self, row: int, scoring: Scoring) -> int | None:
        """Return the best card of the row for one share; None if it is not known, or no longer."""
        now = self._now
        if now.scoring is not scoring or now.seen != self._columns.tick or now.slots[row] == NO_SLOT:
            return None
        return int(now.slots[row])

    def _with_room(self, rows: Ints, into: _Scores) -> Ints:
        """Return those of these rows that fit and have the cpu and the memory of the pod. Set the score of the rows that do not
        fit to `_NOWHERE`, and of the others to `_SHORT`."""
        into.scores[rows], into.slots[rows] = _NOWHERE, NO_SLOT
        rows = self._verdicts.fitting(rows)
        into.scores[rows] = _SHORT
        having: Ints = rows[(self._columns.left[:, rows] >= self._cpu_memory).all(0)]
        return having

    def _score(self, rows: Ints, into: _Scores) -> None:
        """Score rows with room; do nothing without rows."""
        if not len(rows):
            return
        columns = self._columns
        found = self._verdicts.choices(rows)
        after = left_after(columns, rows, found, self._cpu_memory)
        scores = into.scoring.scores(columns.states(rows), after, found.of)
        if len(found.slots):
            scores, into.slots[rows] = _best_of_each(columns, rows, found, scores)
        into.scores[rows] = scores - _NEARER * self._verdicts.levels(rows)


def _best_of_each(columns: Columns, rows: Ints, found: Choices, scores: Ints) -> tuple[Ints, Ints]:
    """Return, for each row, the highest score of its choices and the slot that has it; of equal ones the slot with the least
    left. Each row has a choice."""
    keys = scores * (FULL + 1) - columns.cards[rows[found.of], FREE, found.slots]
    starts = np.concatenate([_FIRST, (found.of[1:] != found.of[:-1]).nonzero()[0] + 1])
    highest = np.maximum.reduceat(keys, starts)
    best = (keys == highest[found.of]).nonzero()[0][::-1]  # so that the first of equal ones is what stays
    slots = np.empty(len(rows), np.int64)
    slots[found.of[best]] = found.slots[best]
    return -(-highest // (FULL + 1)), slots


def _column(cpu_memory: CpuMemory) -> Ints:
    return np.array(cpu_memory, np.int64)[:, None]


class Counting:
    """The columns of all nodes, the scoring, and the scores of the last shapes."""

    def __init__(self, followed: Followed, new_scoring: Callable[[Columns], Scoring]) -> None:
        self.followed = followed
        self.columns = followed.columns
        self._new_scoring = new_scoring
        self._asked = 0
        self.scoring = new_scoring(self.columns)
        self._shapes: Recent[tuple[CachedVerdicts, CpuMemory], ShapeScores] = Recent(REMEMBERED_SHAPES)

    def renew(self) -> None:
        """Make the scoring again, because its inputs have changed."""
        self.scoring = self._new_scoring(self.columns)

    def scores(self, verdicts: CountedVerdicts, cpu_memory: CpuMemory) -> ShapeScores:
        """Return the scores, caught up with the verdicts."""
        scores = self._shapes.of((verdicts, cpu_memory), lambda: ShapeScores(cpu_memory, verdicts, self.columns, self.scoring))
        self._asked += 1
        if self._asked % LOOK_AFTER == 0 and not self.scoring.is_current():
            self.renew()
        scores.catch_up(self.scoring)
        return scores

    def with_best_card(self, room: NodeRoom, shape: Shape, verdicts: CachedVerdicts | None) -> NodeRoom:
        """Return, for one share, the room with only the card that leaves most; else the same room. `verdicts`: of the request,
        if they are cached."""
        wish = wish_of(shape.request)
        if wish is None or wish.cards or len(room.cards) == 1:
            return room
        columns, row = self._found(room)
        slot = self._known_slot(columns, row[0], verdicts, shape.cpu_memory)
        if slot is None:
            found = fits(columns, row, wish)
            if found.missing[0] != FITS or columns.needs_search[row[0]]:
                return room
            given = choices(columns, row, found.cards, wish)
            after = left_after(columns, row, given, _column(shape.cpu_memory))
            scores = self.scoring.scores(columns.states(row), after, given.of)
            slot = int(_best_of_each(columns, row, given, scores)[1][0])
        planes = columns.cards[row[0], :FREE]
        equal = (planes == planes[:, [slot]]).all(0).nonzero()[0].tolist()
        card = min((room.cards[number] for number in equal), key=lambda card: (len(card.gpu.bdf), card.gpu.bdf))
        return replace(room, cards=(card,))

    def _known_slot(self, columns: Columns, row: int, verdicts: CachedVerdicts | None, cpu_memory: CpuMemory) -> int | None:
        scores = self._shapes.get((verdicts, cpu_memory)) if verdicts is not None else None
        return scores.slot(row, self.scoring) if scores is not None and columns is self.columns else None

    def _found(self, room: NodeRoom) -> tuple[Columns, Ints]:
        """Return the row of that room. A room without some pod's claims differs from the one in the ledger."""
        columns = self.columns
        row = columns.row_of.get(room.name, -1)
        known = columns.rooms[row] if row >= 0 else None
        if known is not None and known.cards is room.cards and columns.has_load(row, room):
            return columns, np.array([row])
        return columns.of_room(room), np.zeros(1, np.int64)


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
