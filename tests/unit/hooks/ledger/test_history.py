"""Test the history in its file: what a ledger writes when grants are created and ended."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.ledger import history
from hooks.ledger.history import STEP
from hooks.ledger.period import Began, End, Ended, Period, period_of
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.store import Ledger, read_history, replace_ledger
from hooks.model.assignment import Form, GrantedDevices
from lading.errors import StateError
from lading.vocabulary import ContainerId, PodUid
from tests.fakes.full_disk import full_disk
from tests.fakes.holders import LONG_AGO, NOW, grant, share, vfs, whole
from tests.fakes.old_ledger import make_old_ledger
from tests.unit.hooks.ledger.conftest import reopened

POD = PodUid("pod-1")
BOTH = GrantedDevices(gpus=share(0).gpus, vfs=vfs(1).vfs)
SIGNED = replace(grant(devices=BOTH), form=Form.SIGNED, gen=7)
END = End(at=NOW)


def run(ledger: Ledger, *pods: int) -> None:
    """Create and end pods, one after the other."""
    for number in pods:
        one = grant(f"pod-{number}", granted_at=LONG_AGO + number)
        ledger.record(one)
        ledger.release(one.pod, end=End(at=LONG_AGO + number + 1))


def test_a_grant_is_in_it_from_its_beginning_to_its_end(ledger: Ledger) -> None:
    began = period_of(SIGNED, began=Began.CREATED, key_id="k1")
    ledger.record(SIGNED, key_id="k1")
    assert read_history(ledger.path) == (began,)
    ledger.release(POD, end=END)
    assert read_history(ledger.path) == (replace(began, end=END),)


def test_it_is_there_after_a_restart_and_a_grant_from_before_ends_in_it(ledger: Ledger) -> None:
    ledger.record(SIGNED, key_id="k1")
    with reopened(ledger) as again:
        again.release(POD, end=END)
        assert read_history(again.path) == (replace(period_of(SIGNED, began=Began.CREATED, key_id="k1"), end=END),)
        past = again.history.past()
        assert [(device, period.until) for device, period in past] == [(name, NOW) for name in BOTH.names]
        with reopened(again) as once_more:
            assert once_more.history.past() == past


def test_the_last_holders_of_a_device_are_known_after_a_restart(ledger: Ledger) -> None:
    run(ledger, *range(6))
    past = ledger.history.past()
    assert [period.pod for _, period in past] == ["pod-5", "pod-4", "pod-3", "pod-2"]
    with reopened(ledger) as again:
        assert again.history.past() == past


def test_a_retry_is_the_same_period_and_what_was_released_before_is_another(ledger: Ledger) -> None:
    ledger.record(grant())
    ledger.record(grant(sandbox="pod-1-s1"), key_id="another")
    ledger.add_container(POD, "train", ContainerId("c0"), SIGNED.sandbox)
    assert len(read_history(ledger.path)) == 1
    ledger.release(POD, end=END)
    ledger.record(grant(granted_at=NOW + 1))
    assert [(period.since, period.until) for period in read_history(ledger.path)] == [(LONG_AGO, NOW), (NOW + 1, None)]


@pytest.mark.parametrize("end", [End(at=NOW, how=Ended.FORCED, uid=1000), End(at=NOW, how=Ended.GIVEN_UP)])
def test_how_it_began_and_ended_is_reported(ledger: Ledger, end: End) -> None:
    ledger.record(grant(), began=Began.ADOPTED)
    ledger.release(POD, end=end)
    assert [(period.began, period.end) for period in read_history(ledger.path)] == [(Began.ADOPTED, end)]


def test_containers_of_one_pod_end_each_for_itself(ledger: Ledger) -> None:
    ledger.record(grant())
    ledger.record(grant(container="side", devices=whole(1)))
    ledger.release(POD, "side", end=END)
    assert {period.container: period.until for period in read_history(ledger.path)} == {"train": None, "side": NOW}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE history SET pod_name = 'another'",
        "UPDATE history SET since = 0",
        "UPDATE history SET until = 1 WHERE until IS NOT NULL",
        "UPDATE history SET until = NULL WHERE until IS NOT NULL",
    ],
)
def test_no_one_rewrites_it(ledger: Ledger, statement: str) -> None:
    run(ledger, 1)
    before = read_history(ledger.path)
    shell = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError):
        shell.execute(statement)
    shell.close()
    assert read_history(ledger.path) == before


# reading the history


def test_of_what_was_held_then_or_later(ledger: Ledger) -> None:
    run(ledger, 1, 2, 3)
    ledger.record(grant("holds-on", granted_at=1))
    assert pods(read_history(ledger.path, since=LONG_AGO + 3)) == ["pod-2", "pod-3", "holds-on"]


def pods(periods: tuple[Period, ...]) -> list[str]:
    return [period.pod for period in periods]


def test_where_there_is_no_ledger_there_is_none(path: Path) -> None:
    assert read_history(path) == ()


# removing old periods


def test_what_ended_before_goes_and_what_is_held_stays(ledger: Ledger) -> None:
    ledger.record(grant("holds-on", granted_at=1))
    run(ledger, 1, 2, 3)
    assert ledger.history.prune(LONG_AGO + 3) is False
    assert pods(read_history(ledger.path)) == ["holds-on", "pod-2", "pod-3"]


def test_it_goes_in_small_steps(ledger: Ledger) -> None:
    run(ledger, *range(STEP + 5))
    assert ledger.history.prune(NOW) is True
    assert len(read_history(ledger.path)) == 5
    assert ledger.history.prune(NOW) is False
    assert read_history(ledger.path) == ()


def test_of_too_many_the_oldest_go(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    run(ledger, *range(5))
    with reopened(ledger) as again:
        run(again, 5)
        assert again.history.prune(0) is False
        assert pods(read_history(again.path)) == ["pod-3", "pod-4", "pod-5"]
        assert again.history.prune(0) is False
        assert len(read_history(again.path)) == 3


def test_where_nothing_is_old_nothing_is_written(ledger: Ledger) -> None:
    """Check that the error of the last write stays until the next write."""
    run(ledger, 1)
    ledger.last_write = "the disk is full"
    ledger.history.prune(0)
    assert ledger.last_write
    ledger.history.prune(NOW)
    assert ledger.last_write == ""


def test_a_disk_that_takes_nothing_keeps_it(ledger: Ledger) -> None:
    run(ledger, 1)
    with full_disk(ledger.path), pytest.raises(StateError):
        ledger.history.prune(NOW)
    assert ledger.history.prune(NOW) is False
    assert read_history(ledger.path) == ()


# other versions, other files


@pytest.mark.parametrize("schema", [1, 2])
def test_a_ledger_from_before_begins_with_what_it_holds(path: Path, schema: int) -> None:
    make_old_ledger(path, schema, SIGNED, grant("pod-2", devices=whole(1), granted_at=5))
    assert read_history(path) == ()
    began = tuple(period_of(one, began=Began.CREATED) for one in (grant("pod-2", devices=whole(1), granted_at=5), SIGNED))
    with Ledger.open(path) as ledger:
        assert read_history(path) == began
        ledger.release(POD, end=END)
        assert read_history(path) == (began[0], replace(began[1], end=END))


def test_a_lading_from_before_says_that_the_file_is_newer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(path).close()
    monkeypatch.setattr("hooks.ledger.file.MIGRATIONS", MIGRATIONS[:2])
    with pytest.raises(StateError) as e:
        Ledger.open(path)
    assert "rebuild-ledger" in e.value.hint


def test_a_ledger_that_is_rebuilt_keeps_it(ledger: Ledger, path: Path) -> None:
    run(ledger, 3)
    ledger.record(SIGNED, key_id="k1")
    ledger.record(grant("gone", devices=whole(5)))
    ledger.close()
    _, kept = replace_ledger(path, [SIGNED, grant("new", devices=whole(6))], now=NOW)
    assert kept == 3
    assert [(period.pod, period.began, period.key_id, period.end) for period in read_history(path)] == [
        ("pod-3", Began.CREATED, "", End(at=LONG_AGO + 4)),
        ("pod-1", Began.CREATED, "k1", None),
        ("gone", Began.CREATED, "", End(at=NOW, how=Ended.LOST)),
        ("new", Began.ADOPTED, "", None),
    ]
    with Ledger.open(path) as again:
        again.release(POD, end=END)
    assert [period.end for period in read_history(path) if period.key_id] == [END]


def test_of_one_name_that_is_damaged_the_rest_of_the_history_is_not_lost(path: Path, ledger: Ledger) -> None:
    for pod in ("first", "damaged", "last"):
        ledger.record(grant(pod, devices=whole(1)))
        ledger.release(PodUid(pod), end=END)
    ledger.close()
    written = path.read_bytes()
    path.write_bytes(written.replace(b"damaged", b"d\xffmaged"))
    _, kept = replace_ledger(path, [], now=NOW)
    assert kept == 3
    assert [period.pod for period in read_history(path)][::2] == ["first", "last"]
