"""Keep the journal of attachments: which VF is in which sandbox, at which step; in `node.db` beside the grants, and in memory.

A row is committed before its step is begun, so that the next process knows what may have been changed. A VF has at most one
row. Each row has a generation that this node never uses again; a rebuilt ledger continues after the largest in a container's
annotation. A change for another generation is refused, so that a late release cannot touch a VF that has a new owner. If the
disk fails, writes raise StateError and change nothing. Use the journal in one thread, like its ledger.
"""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from hooks.ledger.attachment import check_attachment, newest_of_each, parse_attachment, render_attachment
from hooks.model.attachment import Attachment, MacOwner, Step
from lading.errors import StateError
from lading.vocabulary import PciAddress, SandboxId

_INSERT: Final = "INSERT INTO attachments (bdf, attachment) VALUES (?, '')"
_UPDATE: Final = "UPDATE attachments SET attachment = ? WHERE generation = ?"
_RESTORE: Final = "INSERT INTO attachments (generation, bdf, attachment) VALUES (?, ?, ?)"

Transaction = Callable[[], AbstractContextManager[sqlite3.Connection]]


class Journal:
    def __init__(self, rows: Iterable[Attachment], transaction: Transaction) -> None:
        """Open the journal. `rows`: the table's content. `transaction`: all changes in it are on disk when it ends, or it
        raises StateError."""
        self._transaction = transaction
        self._rows = {row.bdf: row for row in rows}

    def rows(self) -> tuple[Attachment, ...]:
        return tuple(self._rows.values())

    def find(self, vf: PciAddress) -> Attachment | None:
        return self._rows.get(vf)

    def of_sandbox(self, sandbox: SandboxId) -> tuple[Attachment, ...]:
        return tuple(row for row in self._rows.values() if row.sandbox == sandbox)

    def begin(self, attachment: Attachment) -> Attachment:
        """Record the attachment and give it a generation. Raise StateError if the VF has a row already: the recorded original
        state would be the one that the earlier attachment made."""
        if (there := self._rows.get(attachment.bdf)) is not None:
            raise StateError(f"cannot begin an attachment of {attachment.bdf}: one of sandbox {there.sandbox} is not over")
        with self._transaction() as db:
            generation = db.execute(_INSERT, (attachment.bdf,)).lastrowid or 0
            row = replace(attachment, generation=generation)
            check_attachment(row)
            db.execute(_UPDATE, (render_attachment(row), generation))
        self._rows[row.bdf] = row
        return row

    def reach(
        self, vf: PciAddress, generation: int, step: Step, *, failure: str = "", mac_owner: MacOwner | None = None
    ) -> Attachment:
        """Record the step before it begins, or, with `failure`, after an attempt at it. `mac_owner`: the MAC's owner, if the
        step before showed it."""
        own = self._own(vf, generation)
        row = replace(own, step=step, failure=failure, mac_owner=mac_owner or own.mac_owner)
        with self._transaction() as db:
            db.execute(_UPDATE, (render_attachment(row), generation))
        self._rows[vf] = row
        return row

    def forget(self, vf: PciAddress, generation: int) -> None:
        """Delete the row of a VF that is free again."""
        self._own(vf, generation)
        with self._transaction() as db:
            db.execute("DELETE FROM attachments WHERE generation = ?", (generation,))
        del self._rows[vf]

    def restore(self, rows: Iterable[Attachment]) -> None:
        """Record attachments from containers' annotations for VFs without a row. If another row has an attachment's generation,
        the attachment gets a new one after the largest. A generation may be used again after a ledger was lost."""
        missing = (row for row in rows if row.bdf not in self._rows)
        new = newest_of_each(missing, taken={row.generation for row in self._rows.values()})
        if not new:  # the usual case: nothing is written, so that it also works on a full disk
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
    result = []
    for generation, bdf, text in db.execute("SELECT generation, bdf, attachment FROM attachments ORDER BY generation"):
        row = parse_attachment(text)
        if (row.generation, row.bdf) != (generation, bdf):
            raise StateError(f"cannot read attachment {generation} of {bdf}: it says {row.generation} of {row.bdf}")
        result.append(row)
    return tuple(result)


def write_rows(db: sqlite3.Connection, rows: Iterable[Attachment]) -> None:
    """Write rows into a table that has none of their VFs."""
    for row in rows:
        check_attachment(row)
        db.execute(_RESTORE, (row.generation, row.bdf, render_attachment(row)))
