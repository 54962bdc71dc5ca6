import asyncio
import errno
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from hooks.daemon.daemon import asked_or_failed, make_attacher
from hooks.daemon.settings import AttachBy, Settings
from hooks.ledger.store import Ledger
from hooks.model.attachment import Step
from lading.log import Event, Level, Log
from lading.runtime import RuntimeClient
from lading.stopping import driver_exchanged, stop_asked
from tests.fakes import holders
from tests.fakes.records import Records
from tests.vfs.model import ModelKernel


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_daemon(number: signal.Signals) -> None:
    background = asyncio.create_task(forever())
    ending = asyncio.create_task(asked_or_failed(stop_asked(), [background]))
    os.kill(os.getpid(), number)
    await ending
    assert not background.done()
    background.cancel()


async def test_background_work_that_fails_ends_the_daemon() -> None:
    """Check that the daemon ends: one that silently releases nothing is worse than one that systemd restarts."""
    with pytest.raises(ZeroDivisionError):
        await asked_or_failed(asyncio.Event(), [asyncio.create_task(fail())])


async def test_a_daemon_ends_when_a_driver_was_exchanged() -> None:
    records, find = Records(), Mock(side_effect=["", OSError(errno.EMFILE, "no descriptor is free"), "the module is 560"])
    exchange = asyncio.create_task(driver_exchanged(find, 0.0, Log(records, Level.INFO)))
    await asked_or_failed(asyncio.Event(), [asyncio.create_task(forever()), exchange])
    assert exchange.done()
    assert records.events() == [Event.DRIVER_EXCHANGED]


@pytest.mark.parametrize("attach", AttachBy)
async def test_attached_vfs_return_also_after_the_setting_attach_was_changed(tmp_path: Path, attach: AttachBy) -> None:
    """Check rows that are written to the journal later too, when a container is adopted."""
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        runtime = RuntimeClient(tmp_path / "none.sock")
        log = Log(Records(), Level.DEBUG)
        attacher = make_attacher(Settings(attach=attach), ModelKernel([]), runtime, ledger, holders.BOOT, log)
        ledger.journal.restore([holders.row(step=Step.RECORDED)])
        (row,) = ledger.journal.rows()
        await attacher.reconcile(ready=frozenset(), live=frozenset(), unheld=frozenset({row.generation}))
        assert ledger.journal.rows() == ()
