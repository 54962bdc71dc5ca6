import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.ledger.store import Ledger, read_journal, replace_ledger
from hooks.model.attachment import Attachment, Step
from lading.errors import StateError
from lading.vocabulary import PciAddress, SandboxId
from tests.fakes.full_disk import full_disk
from tests.fakes.holders import NOW, grant
from tests.fakes.old_ledger import make_old_ledger
from tests.unit.hooks.ledger.conftest import reopened
from tests.unit.hooks.ledger.test_attachment import BARE, FULL

NEW = replace(FULL, generation=0, step=Step.RECORDED, failure="")
VF = NEW.bdf


def other(number: int = 3) -> Attachment:
    return replace(NEW, vf=replace(NEW.vf, bdf=PciAddress(f"0000:3b:00.{number}")), sandbox=SandboxId("s1"))


def test_what_was_reached_is_there_after_a_restart(ledger: Ledger) -> None:
    first, second = ledger.journal.begin(NEW), ledger.journal.begin(other())
    assert (first.generation, second.generation) == (1, 2)
    ledger.journal.reach(VF, 1, Step.MOVING)
    moved = ledger.journal.reach(VF, 1, Step.MOVING, failure="it hangs")
    assert moved == replace(first, step=Step.MOVING, failure="it hangs")
    assert read_journal(ledger.path) == (moved, second)
    with reopened(ledger) as again:
        assert again.journal.rows() == (moved, second)
        assert again.journal.find(VF) == moved
        assert again.journal.of_sandbox(second.sandbox) == (second,)
        assert again.journal.reach(VF, 1, Step.RAISING) == replace(first, step=Step.RAISING)


def test_a_vf_has_one_row(ledger: Ledger) -> None:
    row = ledger.journal.begin(NEW)
    with pytest.raises(StateError, match=str(row.sandbox)):
        ledger.journal.begin(replace(NEW, sandbox=SandboxId("s9")))
    assert ledger.journal.rows() == (row,)


def test_a_generation_is_never_used_again(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        assert ledger.journal.begin(NEW).generation == number
        ledger.journal.forget(VF, number)
    with reopened(ledger) as again:
        assert again.journal.begin(NEW).generation == 4


def test_what_is_reported_of_another_generation_is_refused(ledger: Ledger) -> None:
    ledger.journal.begin(NEW)
    ledger.journal.forget(VF, 1)
    row = ledger.journal.begin(NEW)
    with pytest.raises(StateError):
        ledger.journal.reach(VF, 1, Step.RESTORING)
    with pytest.raises(StateError):
        ledger.journal.forget(VF, 1)
    with pytest.raises(StateError):
        ledger.journal.forget(PciAddress("0000:00:00.0"), row.generation)
    assert ledger.journal.rows() == (row,) == read_journal(ledger.path)


def test_a_disk_that_does_not_take_it_changes_nothing(ledger: Ledger) -> None:
    row = ledger.journal.begin(NEW)
    for write in (
        lambda: ledger.journal.begin(other()),
        lambda: ledger.journal.reach(VF, 1, Step.MOVING),
        lambda: ledger.journal.forget(VF, 1),
        lambda: ledger.journal.restore([other()]),
    ):
        with full_disk(ledger.path), pytest.raises(StateError):
            write()
        assert ledger.journal.rows() == (row,)
    assert ledger.write_failures == 4
    with reopened(ledger) as again:
        assert again.journal.rows() == (row,)


def test_what_could_not_be_read_back_is_not_written(ledger: Ledger) -> None:
    with pytest.raises(StateError):
        ledger.journal.begin(replace(NEW, ifname="a b"))
    with pytest.raises(StateError):
        ledger.journal.restore([replace(FULL, ifname="a b")])
    with reopened(ledger) as again:
        assert again.journal.rows() == ()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE attachments SET attachment = '{}'",
        "UPDATE attachments SET attachment = replace(attachment, 'rdma0', 'rdma 0')",
        "UPDATE attachments SET generation = 5",
        "UPDATE attachments SET bdf = '0000:3b:00.7'",
    ],
)
def test_a_row_that_was_tampered_with_is_no_ledger(ledger: Ledger, damage: str) -> None:
    ledger.journal.begin(NEW)
    ledger.close()
    with sqlite3.connect(ledger.path) as shell:
        shell.execute(damage)
    shell.close()
    with pytest.raises(StateError, match=str(ledger.path)) as e:
        Ledger.open(ledger.path)
    assert "rebuild-ledger" in e.value.hint
    with pytest.raises(StateError):
        read_journal(ledger.path)


# rebuilt


def test_a_rebuilt_ledger_has_the_newest_of_what_containers_say(ledger: Ledger) -> None:
    ledger.close()
    newest = replace(FULL, generation=9, failure="")
    rows = (newest, replace(BARE, generation=4), replace(other(), generation=6, step=Step.ATTACHED))
    replace_ledger(ledger.path, [grant()], rows, now=NOW)
    with Ledger.open(ledger.path) as again:
        assert again.grants() == (grant(),)
        assert sorted(again.journal.rows(), key=lambda row: row.generation) == [rows[2], newest]
        assert again.journal.begin(other(5)).generation == 10


def test_what_is_in_the_journal_is_known_better_than_by_containers(ledger: Ledger) -> None:
    row = ledger.journal.begin(NEW)
    there = replace(other(), generation=8, step=Step.ATTACHED)
    ledger.journal.restore([replace(FULL, generation=7), there])
    with reopened(ledger) as again:
        assert again.journal.rows() == (row, there)


def test_a_number_that_was_given_again_keeps_no_one_out_of_the_journal(ledger: Ledger) -> None:
    row = ledger.journal.begin(NEW)
    ledger.journal.restore([replace(other(), generation=row.generation, step=Step.ATTACHED)])
    with reopened(ledger) as again:
        result = again.journal.find(other().bdf)
        assert result is not None
        assert result.generation > row.generation
        assert again.journal.find(row.bdf) == row


# other versions


def test_a_ledger_from_before_there_was_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "state" / "node.db"
    make_old_ledger(path, 1, grant())
    assert read_journal(path) == ()
    with Ledger.open(path) as ledger:
        assert ledger.grants() == (grant(),)
        assert ledger.journal.rows() == ()
        assert ledger.journal.begin(NEW).generation == 1


def test_where_there_is_no_ledger_nothing_is_attached(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "node.db") == ()


def test_to_restore_nothing_is_no_write(ledger: Ledger) -> None:
    there = ledger.journal.begin(NEW)
    ledger.path.rename(ledger.path.with_suffix(".gone"))
    ledger.journal.restore([])
    ledger.journal.restore([there])
    assert ledger.write_failures == 0


def test_a_generation_that_could_not_be_read_back_is_not_given(ledger: Ledger) -> None:
    """Check such a generation, with which a ledger would be refused at the next start."""
    ledger.journal.restore([replace(FULL, generation=2**53)])
    with pytest.raises(StateError):
        ledger.journal.begin(other())
    with reopened(ledger) as again:
        assert [row.generation for row in again.journal.rows()] == [2**53]
