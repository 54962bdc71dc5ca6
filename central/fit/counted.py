"""Judge all nodes for one ask, by columns: which fit, why the others do not, and what every choice there would leave.

Input: columns (columns.py), an ask. A simple ask is judged by counting in columns (vectors.py); another one, and any ask on a
node that is odd, by the exact fit, once for all rooms that are alike. That tells too how close the devices of one container
would be. Kept, and caught up with the columns; of a few nodes that changed, those that are alike others are looked up.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from central.ask.model import Ask, PartitionPolicy, Policy
from central.fit.columns import Bools, Columns, Ints, left_of
from central.fit.demand import DEFAULT_LIMITS, Limits, read_demand
from central.fit.likeness import likeness_for
from central.fit.model import Missing, NoFit, Placement
from central.fit.topology import Distance
from central.fit.vectors import FITS, NUMBER_OF, REASONS, Choices, choices, fits, wish_of
from central.ledger.model import NodeRoom


class Place(Protocol):
    def __call__(self, room: NodeRoom, ask: Ask, *, brief: bool = False) -> Placement | NoFit:
        """`brief`: NOT_REACHED where a short search does not decide."""


VERDICTS: Final = 4096  # that are remembered of one ask
FEW: Final = 16  # rows that are looked up one by one: a step of vectors costs some dozens of calls, whatever their length
NO_SLOT: Final = -1
_UNSEEN: Final = -1
_SHOWN: Final = tuple(missing.shown if missing else "" for missing in REASONS)


class _Judged(NamedTuple):
    """By the exact fit, of a room that fits."""

    left: tuple[int, ...]  # milli of the cards, in any order: a score does not tell them apart
    apart: int  # how far the devices of one container are from each other: the worst link, then the worst distance


class ColumnStanding:
    """For one ask, on all nodes. `fits`: their names, as keys: a filter looks up thousands, and a set would have four times the
    memory to look at. `reasons`: of every node, as it is shown; empty where it fits."""

    def __init__(self, ask: Ask, columns: Columns, place: Place, limits: Limits = DEFAULT_LIMITS) -> None:
        self.fits: dict[str, None] = {}
        self.reasons: dict[str, str] = {}
        demand = read_demand(ask, Policy.FRAGMENTATION, limits)
        self.wish = wish_of(ask)
        self._alike = likeness_for(demand)
        self._in_partitions = demand.partition is PartitionPolicy.HONOR
        self._ask = ask
        self._columns = columns
        self._place = place
        self._seen = -1
        self._missing: Ints = np.zeros(0, np.int64)  # by row: FITS or why not
        self._cards = np.zeros((0, 0), np.bool_)  # by row: which would do, where that was counted
        self._after: Ints = np.zeros((0, 0), np.int64)  # by row: what would be left, where the exact fit said it
        self._apart: Ints = np.zeros(0, np.int64)  # by row: how far the devices would be, where the exact fit said it
        self._by_likeness: dict[int, Missing | _Judged] = {}
        self._open: dict[int, None] = {}  # rows whose exact fit is not known as they are now
        self._hard: dict[int, None] = {}  # the same, where a brief look did not decide
        self.judged: Ints = np.zeros(0, np.int64)  # by row: the tick of the last exact fit
        self.tick = 0
        self._counted: dict[int, tuple[int, Bools]] = {}  # by Columns.alike: why not, and which cards would do

    def catch_up(self) -> None:
        columns = self._columns
        if self._seen == columns.tick:
            return
        self._make_room()
        self._forget_dropped()
        rows = columns.changed_since(self._seen, devices_only=True)
        if len(rows) > FEW or self.wish is None:
            self._look_at(rows)
        elif strange := self._recall(rows.tolist()):
            self._look_at(np.array(strange))
            self._remember(strange)
        self._seen = columns.tick  # now that all are judged

    def _recall(self, rows: Sequence[int]) -> list[int]:
        """Copy the results of rows that are equal to counted ones. Return the other rows."""
        columns, rest = self._columns, []
        for row in rows:
            known = self._counted.get(columns.alike[row])
            if known is None:
                rest.append(row)
                continue
            missing, self._cards[row] = known
            self._close([row])
            self._set(row, missing)
        return rest

    def _remember(self, rows: Sequence[int]) -> None:
        if len(self._counted) >= VERDICTS:
            self._counted.clear()
        for row in rows:
            if not self._is_odd(row):
                self._counted[self._columns.alike[row]] = int(self._missing[row]), self._cards[row].copy()

    def outlook(self, row: int) -> Hashable:
        """Return what a choice in this row depends on, beyond what the columns hold."""
        if self.wish is not None and not self._is_odd(row):
            return None
        return int(self._missing[row]), int(self._apart[row]), self._after[row].tobytes()

    def _look_at(self, rows: Ints) -> None:
        columns = self._columns
        if self.wish is None:
            missing = self._leave_open(rows)
        else:
            found = fits(columns, rows, self.wish)
            missing = found.missing
            self._cards[rows] = found.cards
            odd = self._odd(rows)
            self._close(rows[~odd])
            if odd.any():
                missing[odd] = self._leave_open(rows[odd])
        turned = missing != self._missing[rows]
        self._missing[rows] = missing
        for row, why in zip(rows[turned].tolist(), missing[turned].tolist(), strict=True):
            self._say(columns.names[row], why)

    def fitting(self, rows: Ints) -> Ints:
        fitting: Ints = rows[self._missing[rows] == FITS]
        return fitting

    def choices(self, rows: Ints) -> Choices:
        """Of rows that fit."""
        columns = self._columns
        if self.wish is None:
            return Choices(np.arange(len(rows)), self._after[rows])
        odd = self._odd(rows)
        if not odd.any():
            return choices(columns, rows, self._cards[rows], self.wish)
        plain, strange = np.flatnonzero(~odd), np.flatnonzero(odd)
        counted = choices(columns, rows[plain], self._cards[rows[plain]], self.wish)
        of = np.concatenate([plain[counted.of], strange])
        free = np.concatenate([counted.free, self._after[rows[strange]]])
        order = np.argsort(of, kind="stable")
        if not len(counted.slots):
            return Choices(of[order], free[order])
        slots = np.concatenate([counted.slots, np.full(len(strange), NO_SLOT)])
        return Choices(of[order], free[order], slots[order])

    def apart(self, rows: Ints) -> Ints:
        """How far the devices of one container would be from each other, of an ask that is not simple."""
        apart: Ints = self._apart[rows]
        return apart

    def _odd(self, rows: Ints) -> Bools:
        """Where counting does not do for this ask."""
        odd: Bools = self._columns.odd[rows]
        return odd | self._columns.parted[rows] if self._in_partitions else odd

    def _is_odd(self, row: int) -> bool:
        columns = self._columns
        return bool(columns.odd[row]) or (self._in_partitions and bool(columns.parted[row]))

    def _say(self, name: str, why: int) -> None:
        if not name:
            return
        self.reasons[name] = _SHOWN[why]
        if why == FITS:
            self.fits[name] = None
        else:
            self.fits.pop(name, None)

    def _forget_dropped(self) -> None:
        dropped = self._columns.dropped_since(self._seen)
        if dropped is None:
            self.fits.clear()
            self.reasons.clear()
            self._missing[:] = _UNSEEN
            self._open.clear()
            self._hard.clear()
            self._seen = -1
            return
        for name, row in dropped:
            self.fits.pop(name, None)
            self.reasons.pop(name, None)
            self._missing[row] = _UNSEEN
            self._close([row])

    def _make_room(self) -> None:
        had, size, slots = len(self._missing), len(self._columns.changed), self._columns.slots
        if had == size and self._cards.shape[1] == slots:
            return
        missing, cards, after, apart = self._missing, self._cards, self._after, self._apart
        self._counted.clear()
        self._missing = np.full(size, _UNSEEN)
        self._cards = np.zeros((size, slots), np.bool_)
        self._after = np.zeros((size, slots), np.int64)
        self._apart = np.zeros(size, np.int64)
        self.judged = np.concatenate([self.judged, np.zeros(size - had, np.int64)])
        self._missing[:had] = missing
        self._apart[:had] = apart
        self._cards[:had, : cards.shape[1]] = cards
        self._after[:had, : after.shape[1]] = after

    # ---- rows that only the exact fit can judge

    @property
    def complete(self) -> bool:
        """Every node is judged as it was when this was caught up."""
        return not self._open and not self._hard

    def judging(self) -> Iterator[None]:
        """Judge what is open, one node in each step. All get a brief look first, so that a hard node hides no easy one."""
        while self._open or self._hard:
            self._judge_one(next(iter(self._open or self._hard)), brief=bool(self._open))
            yield

    def settle(self, name: str) -> None:
        """Judge this node now, if it is open."""
        row = self._columns.row_of.get(name, _UNSEEN)
        if row in self._open or row in self._hard:
            self._judge_one(row, brief=False)

    def _leave_open(self, rows: Ints) -> Ints:
        for row in rows.tolist():
            self._hard.pop(row, None)
            self._open[row] = None
        return np.full(len(rows), NUMBER_OF[Missing.NOT_REACHED])

    def _close(self, rows: Iterable[int] | Ints) -> None:
        for row in () if self.complete else rows:
            self._open.pop(int(row), None)
            self._hard.pop(int(row), None)

    def _judge_one(self, row: int, *, brief: bool) -> None:
        room = self._columns.rooms[row]
        verdict = Missing.NO_REPORT if room is None else self._judge(room, brief)
        self._close([row])
        if verdict is Missing.NOT_REACHED:
            self._hard[row] = None
            return
        self.tick += 1
        self.judged[row] = self.tick
        if isinstance(verdict, Missing):
            self._set(row, NUMBER_OF[verdict])
            return
        self._after[row] = 0
        self._after[row, : len(verdict.left)] = verdict.left
        self._apart[row] = verdict.apart
        self._set(row, FITS)

    def _set(self, row: int, missing: int) -> None:
        if self._missing[row] != missing:
            self._missing[row] = missing
            self._say(self._columns.names[row], missing)

    def _judge(self, room: NodeRoom, brief: bool) -> Missing | _Judged:
        alike = self._alike(room)
        verdict = self._by_likeness.get(alike)
        if verdict is None or (verdict is Missing.NOT_REACHED and not brief):
            placed = self._place(room, self._ask, brief=brief)
            verdict = placed.missing if isinstance(placed, NoFit) else _judged(room, placed)
            if len(self._by_likeness) >= VERDICTS:
                self._by_likeness.clear()
            self._by_likeness[alike] = verdict
        return verdict


def _judged(room: NodeRoom, placed: Placement) -> _Judged:
    left = tuple(left_of(card, placed.taken.gpus.get(card.gpu.uuid)) for card in room.cards)
    return _Judged(left, placed.link * len(Distance) + placed.distance)
