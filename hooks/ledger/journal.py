"""The journal: which VF is in which sandbox, and how far; in `node.db` beside the grants, all of it in memory too.

A row is committed before the step that it names is begun, so that whoever starts after us knows what may have been changed. At
most one row a VF. Each has a generation that this node never uses again (a rebuilt ledger goes on after the largest that a
container tells of): what is said of another generation is refused, so a late release can not touch a VF that has a new
owner. Writes raise StateError and change nothing when the disk does not take them. One thread, as the ledger that it is opened
with.
"""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from hooks.ledger.attachment import check_attachment, newest_of_each, parse_attachment, render_attachment
from hooks.model.attachment import Attachment, Step
from lading.errors import StateError
from lading.vocabulary import PciAddress, SandboxId

_INSERT: Final = "INSERT INTO attachments (bdf, attachment) VALUES (?, '')"
_UPDATE: Final = "UPDATE attachments SET attachment = ? WHERE generation = ?"
_RESTORE: Final = "INSERT INTO attachments (generation, bdf, attachment) VALUES (?, ?, ?)"

Transaction = Callable[[], AbstractContextManager[sqlite3.Connection]]


class Journal:
    def __init__(self, rows: Iterable[Attachment], transaction: Transaction) -> None:
        """`rows`: what the table has. `transaction`: all that is done in it is on disk when it ends, or StateError."""
        self._transaction = transaction
        self._rows = {row.bdf: row for row in rows}

    def rows(self) -> tuple[Attachment, ...]:
        return tuple(self._rows.values())

    def find(self, vf: PciAddress) -> Attachment | None:
        return self._rows.get(vf)

    def of_sandbox(self, sandbox: SandboxId) -> tuple[Attachment, ...]:
        return tuple(row for row in self._rows.values() if row.sandbox == sandbox)

    def begin(self, attachment: Attachment) -> Attachment:
        """Its generation is given here. Refused where the VF has a row already: what is recorded as its original then is what
        the row's attachment made of it."""
        if (there := self._rows.get(attachment.bdf)) is not None:
            raise StateError(f"cannot begin an attachment of {attachment.bdf}: one of sandbox {there.sandbox} is not over")
        with self._transaction() as db:
            generation = db.execute(_INSERT, (attachment.bdf,)).lastrowid or 0
            row = replace(attachment, generation=generation)
            check_attachment(row)
            db.execute(_UPDATE, (render_attachment(row), generation))
        self._rows[row.bdf] = row
        return row

    def reach(self, vf: PciAddress, generation: int, step: Step, *, failure: str = "") -> Attachment:
        """Before `step` is begun; or, with `failure`, after an attempt at it."""
        row = replace(self._own(vf, generation), step=step, failure=failure)
        with self._transaction() as db:
            db.execute(_UPDATE, (render_attachment(row), generation))
        self._rows[vf] = row
        return row

    def forget(self, vf: PciAddress, generation: int) -> None:
        """The VF is as it was before, and free."""
        self._own(vf, generation)
        with self._transaction() as db:
            db.execute("DELETE FROM attachments WHERE generation = ?", (generation,))
        del self._rows[vf]

    def restore(self, rows: Iterable[Attachment]) -> None:
        """What containers say of VFs that have no row. Generations go on after the largest; one that a row has by now, because
        it was given again after the ledger was lost, is another's."""
        missing = (row for row in rows if row.bdf not in self._rows)
        new = newest_of_each(missing, taken={row.generation for row in self._rows.values()})
        if not new:  # as with nearly every comparison with the runtime: nothing is written, on a full disk too
            return
        with self._transaction() as db:
            write_rows(db, new)
        self._rows |= {row.bdf: row for row in new}

    def _own(self, vf: PciAddress, generation: int) -> Attachment:
        row = self._rows.get(vf)
        if row is None or row.generation != generation:
            raise StateError(f"cannot write of attachment {generation} of {vf}: it is over")
        return row


def read_rows(db: sqlite3.Connection) -> tuple[Attachment, ...]:
    found = []
    for generation, bdf, text in db.execute("SELECT generation, bdf, attachment FROM attachments ORDER BY generation"):
        row = parse_attachment(text)
        if (row.generation, row.bdf) != (generation, bdf):
            raise StateError(f"cannot read attachment {generation} of {bdf}: it says {row.generation} of {row.bdf}")
        found.append(row)
    return tuple(found)


def write_rows(db: sqlite3.Connection, rows: Iterable[Attachment]) -> None:
    """Into a table that has none of their VFs."""
    for row in rows:
        check_attachment(row)
        db.execute(_RESTORE, (row.generation, row.bdf, render_attachment(row)))
