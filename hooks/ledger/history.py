"""Keep the history in `node.db`: which pod held which devices of this node, from when to when, and who decided it.

Each grant has one row. The transaction that records the grant writes the row, and the transaction that frees the grant ends it:
neither is on disk without the other. The schema allows no other change of a row. Old rows are deleted in small steps (`prune`),
after the calls that containers wait for. Use the history in one thread, like its ledger.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hooks.ledger.journal import Transaction
from hooks.ledger.period import Began, End, Ended, Past, Period, add_past, past_of, period_of
from hooks.model.grant import Grant, GrantKey, parse_devices, parse_form, render_json
from lading.errors import StateError
from lading.vocabulary import PodUid

# Maximum rows: one grant every two and a half minutes for 90 days. They take 40 MB if each grant has eight GPUs and eight VFs.
# When there are more, the oldest rows are deleted.
MOST: Final = 50_000
STEP: Final = 200  # maximum rows deleted in one step; a container that is created meanwhile waits for 2 ms
_SCANNED_ROWS: Final = 1000  # rows read at the start to find the last holders of each device

_BEGUN: Final = (*("pod_uid", "container", "namespace", "pod_name", "form", "gen", "key_id", "devices"), *("began", "since"))
_COLUMNS: Final = (*_BEGUN, "until", "ended", "ended_by")
_INSERT: Final = f"INSERT INTO history ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  constants only
_END: Final = "UPDATE history SET until = ?, ended = ?, ended_by = ? WHERE id = ?"
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM history"  # noqa: S608
_OLDEST: Final = "SELECT id FROM history WHERE until IS NOT NULL AND until < ? ORDER BY until LIMIT ?"
_EVER: Final = 2**63 - 1  # SQLite's largest integer

Row = tuple[str | int | None, ...]


class Begun(NamedTuple):
    row: int  # id of the row in the table
    period: Period


class History:
    def __init__(self, db: sqlite3.Connection, transaction: Transaction) -> None:
        """Open the history. `transaction`: all changes in it are on disk when it ends, or it raises StateError."""
        self._transaction = transaction
        held = db.execute(f"SELECT id, {', '.join(_COLUMNS)} FROM history WHERE until IS NULL")  # noqa: S608
        begun = (Begun(row, _period(columns)) for row, *columns in held)
        self._held = {_key(one.period): one for one in begun}
        newest = f"{_SELECT} WHERE until IS NOT NULL ORDER BY until DESC, id DESC LIMIT {_SCANNED_ROWS}"
        self._past = past_of(map(_period, db.execute(newest)))
        (self._rows,) = db.execute("SELECT count(*) FROM history").fetchone()

    def past(self) -> tuple[Past, ...]:
        """Return the last few holders of each device, newest first."""
        return self._past

    def begin(self, db: sqlite3.Connection, grant: Grant, *, began: Began, key_id: str) -> Begun:
        """Begin a grant's period within a transaction of the ledger. Call `has_begun` after the transaction."""
        period = period_of(grant, began=began, key_id=key_id)
        return Begun(write_period(db, period), period)

    def has_begun(self, begun: Begun) -> None:
        self._held[_key(begun.period)] = begun
        self._rows += 1

    def end(self, db: sqlite3.Connection, grants: Iterable[Grant], end: End) -> list[Period]:
        """End the periods of these grants within a transaction of the ledger. Call `have_ended` after the transaction."""
        over = [self._held[grant.key] for grant in grants if grant.key in self._held]
        db.executemany(_END, [(*_end_columns(end), begun.row) for begun in over])
        return [replace(begun.period, end=end) for begun in over]

    def have_ended(self, periods: Collection[Period]) -> None:
        for period in periods:
            del self._held[_key(period)]
        self._past = add_past(periods, self._past)

    def prune(self, before: int) -> bool:
        """Delete at most STEP rows: rows that ended before this time, or the oldest rows above the limit MOST. Return whether
        there may be more. Rows of present holders stay, however old they are."""
        with self._transaction() as db:
            old = db.execute(_OLDEST, (before, STEP)).fetchall()
            if len(old) < min(excess := self._rows - MOST, STEP):
                old = db.execute(_OLDEST, (_EVER, min(excess, STEP))).fetchall()
            db.executemany("DELETE FROM history WHERE id = ?", old)
        self._rows -= len(old)
        return len(old) == STEP


def write_period(db: sqlite3.Connection, period: Period) -> int:
    """Write a period. Return the id of its row."""
    begun = (period.pod, period.container, period.namespace, period.pod_name, str(period.form), period.gen, period.key_id)
    row = (*begun, render_json(period.devices), period.began.value, period.since, *_end_columns(period.end))
    return db.execute(_INSERT, row).lastrowid or 0


def read_periods(db: sqlite3.Connection, *, since: int) -> tuple[Period, ...]:
    """Return the periods with a holder at `since` (Unix seconds) or later, in the order in which they were written."""
    return tuple(map(_period, db.execute(f"{_SELECT} WHERE until IS NULL OR until >= ? ORDER BY id", (since,))))


def salvage_periods(db: sqlite3.Connection) -> tuple[Period, ...]:
    """Return the periods that can be read from a ledger that may be damaged, row by row; none if its version has no history."""
    result = []
    with contextlib.suppress(sqlite3.Error):
        for row in db.execute(f"{_SELECT} ORDER BY id"):
            with contextlib.suppress(StateError):
                result.append(_period(row))
    return tuple(result)


def _key(period: Period) -> GrantKey:
    return GrantKey(period.pod, period.container)


def _end_columns(end: End | None) -> Row:
    return (None, None, None) if end is None else (end.at, end.how.value, end.uid)


def _period(row: Sequence[Any]) -> Period:
    pod, container, namespace, pod_name, form, gen, key_id, devices, began, since, until, ended, uid = row
    try:
        end = None if until is None else End(at=until, how=Ended(ended), uid=uid)
        return Period(
            pod=PodUid(pod),
            container=container,
            namespace=namespace,
            pod_name=pod_name,
            form=parse_form(form),
            gen=gen,
            key_id=key_id,
            devices=parse_devices(devices),
            began=Began(began),
            since=since,
            end=end,
        )
    except ValueError as e:
        raise StateError(f"cannot read the history of pod {pod!r:.80}: {e}") from e
