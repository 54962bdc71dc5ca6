import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hooks.daemon.retention import PAUSE_S, REST_S, SCAN_S, keep_forgetting
from hooks.ledger.history import STEP
from hooks.ledger.period import End
from hooks.ledger.store import Ledger, read_history
from hooks.node.node_log import NodeLog
from lading.log import Event, Log
from tests.fakes.full_disk import full_disk
from tests.fakes.holders import grant
from tests.fakes.records import Records

DAY = 86400


def forget(
    ledger: Ledger, log: Log, *, now: float, scans: int, meanwhile: Callable[[int], None] = lambda _: None
) -> list[float]:
    """Run retention until it has waited so often; return the length of each wait."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        meanwhile(len(waits))
        if len(waits) == scans:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_forgetting(ledger.history, days=90, node_log=NodeLog(log), clock=lambda: now, sleep=sleep))
    return waits


def run(ledger: Ledger, *ends: int) -> None:
    for number, end in enumerate(ends):
        one = grant(f"pod-{number}")
        ledger.record(one)
        ledger.release(one.pod, end=End(at=end))


def test_what_is_older_than_it_is_kept_goes(tmp_path: Path, log: Log) -> None:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        run(ledger, 9, 10, 11)
        assert forget(ledger, log, now=90 * DAY + 10, scans=1) == [SCAN_S]
        assert [period.until for period in read_history(ledger.path)] == [10, 11]


def test_where_there_is_much_a_pause_is_short(tmp_path: Path, log: Log) -> None:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        run(ledger, *range(2 * STEP))
        assert forget(ledger, log, now=100 * DAY, scans=3) == [PAUSE_S, PAUSE_S, SCAN_S]
        assert read_history(ledger.path) == ()


def test_a_disk_that_takes_nothing_is_reported_once_and_it_goes_on(tmp_path: Path, log: Log, records: Records) -> None:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger, ExitStack() as disk:
        run(ledger, 1)
        disk.enter_context(full_disk(ledger.path))

        def mend(waits: int) -> None:
            if waits == 2:
                disk.close()

        assert forget(ledger, log, now=100 * DAY, scans=3, meanwhile=mend) == [SCAN_S] * 3
        assert len(records.fields(Event.LEDGER_FAILED)) == 1
        assert read_history(ledger.path) == ()


def test_a_clock_that_jumps_costs_nothing_for_a_day(tmp_path: Path, log: Log) -> None:
    seconds, years, left = 0.0, 0.0, []

    async def sleep(wait_s: float) -> None:
        nonlocal seconds, years
        left.append(len(read_history(ledger.path)))
        seconds += wait_s
        years = 10.0
        if seconds > REST_S + 3 * SCAN_S:
            raise asyncio.CancelledError

    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        run(ledger, 91 * DAY)
        keep = keep_forgetting(
            ledger.history,
            days=90,
            node_log=NodeLog(log),
            clock=lambda: 100 * DAY + seconds + years * 365 * DAY,
            monotonic=lambda: seconds,
            sleep=sleep,
        )
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(keep)
    assert left.count(1) == 1 + REST_S // SCAN_S
    assert left[-1] == 0
