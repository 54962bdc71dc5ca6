"""Test what happens to the ledger when the file, the disk or the process fails: explained, never a silent empty start."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hooks.ledger.period import End, Ended, Period
from hooks.ledger.schema import APPLICATION_ID, MIGRATIONS
from hooks.ledger.store import Ledger, read_history, replace_ledger
from lading.errors import StateError
from lading.vocabulary import ContainerId, PodUid, SandboxId
from tests.fakes.holders import NOW, grant, vfs, whole
from tests.faults.rig import fill

REBUILD = "lading-hooks rebuild-ledger"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a ledger with grants on several pages, and close it."""
    path = tmp_path / "node.db"
    with Ledger.open(path) as ledger:
        for n in range(50):
            ledger.record(grant(f"pod-{n}", devices=vfs(n)))
    return path


def overwrite(start: int, data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(data)

    return damage


def truncate(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def execute(*statements: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            db.execute(statement)
        db.close()

    return damage


def index_page(path: Path) -> None:
    """Damage a page that is not read at the start, but by a later write."""
    db = sqlite3.connect(path)
    (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'grant_containers_by_grant'").fetchone()
    db.close()
    overwrite((root - 1) * 4096, b"\xa5" * 4096)(path)


def another_database(path: Path) -> None:
    path.unlink()
    execute("CREATE TABLE cookies (x)")(path)


def no_database(path: Path) -> None:
    path.write_text("node.db went for a walk\n" * 1000)


def only_the_log_is_left(path: Path) -> None:
    path.rename(path.with_name("node.db-wal"))


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


DAMAGES = {
    "header": overwrite(0, b"\0" * 16),
    "page": overwrite(4096, b"\xa5" * 4096),
    "page of an index": index_page,
    "empty": truncate(0),
    "half": truncate(8192),
    "not even a header": truncate(50),
    "no database": no_database,
    "another program's": another_database,
    "from the future": execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}"),
    "a table is gone": execute("DROP TABLE grants"),
    "a row is no JSON": execute("UPDATE grants SET devices = '{' WHERE pod_uid = 'pod-7'"),
    "a row has no device's name": execute("""UPDATE grants SET devices = '{"vfs":[{"bdf":"x"}]}' WHERE pod_uid = 'pod-7'"""),
    "a row has no form": execute("UPDATE grants SET form = ''"),
    "the history is gone": execute("DROP TABLE history"),
    "a period is no JSON": execute("DROP TRIGGER history_is_not_rewritten", "UPDATE history SET devices = '{'"),
    "a period ended nobody knows how": execute("UPDATE history SET until = 1, ended = 'x' WHERE pod_uid = 'pod-7'"),
    "only the log is left": only_the_log_is_left,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_names_the_file_and_the_command_and_changes_nothing(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):  # also not after a restart
        with pytest.raises(StateError) as e:
            Ledger.open(path)
        assert str(path) in e.value.message
        assert REBUILD in e.value.hint
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_after_the_command_it_opens_with_what_the_runtime_knew(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    there = path.exists()
    rebuilt = grant("pod-7", devices=vfs(7))
    aside, _ = replace_ledger(path, [rebuilt], now=NOW)
    assert (aside is not None and aside.exists()) is there
    with Ledger.open(path) as ledger:
        assert ledger.grants() == (rebuilt,)


def test_an_empty_file_is_called_that(path: Path) -> None:
    """Check that the message does not name another program, as SQLite's answer for an empty file suggests."""
    truncate(0)(path)
    with pytest.raises(StateError, match="is empty"):
        Ledger.open(path)


def test_a_link_is_not_followed(path: Path) -> None:
    link(path)
    with pytest.raises(StateError):
        Ledger.open(path)


def test_a_crash_while_a_ledger_is_made_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    path.with_name("node.db.new").write_bytes(b"half")
    with Ledger.open(path) as ledger:
        assert ledger.grants() == ()


@pytest.mark.parametrize("at", ["hooks.ledger.file.set_aside", "pathlib.Path.rename"])
def test_a_crash_while_it_is_replaced_does_not_leave_an_empty_one(path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    execute("PRAGMA user_version = 99")(path)
    with monkeypatch.context() as patch:
        patch.setattr(at, die)
        with pytest.raises(Killed):
            replace_ledger(path, [grant()], now=NOW)
    with pytest.raises(StateError):
        Ledger.open(path)
    replace_ledger(path, [grant()], now=NOW)
    with Ledger.open(path) as ledger:
        assert ledger.grants() == (grant(),)


# the disk


def test_a_full_disk_refuses_the_grant_and_keeps_what_was_written(small_disk: Path) -> None:
    path = small_disk / "node.db"
    with Ledger.open(path) as ledger:
        ledger.record(grant())
        filler = fill(small_disk)
        refused = None
        for n in range(1, 200):  # pages that SQLite allocated already still take some writes
            try:
                ledger.record(grant(f"pod-{n + 1}", devices=vfs(n)))
            except StateError as e:
                refused = e
                break
        assert refused is not None
        assert str(path) in refused.message
        assert REBUILD not in refused.hint
        held = ledger.grants()
        assert len(held) == n
        with pytest.raises(StateError):
            ledger.tombstone(SandboxId("s"), 1)
        with pytest.raises(StateError):
            ledger.add_container(PodUid("pod-1"), "train", ContainerId("c"), SandboxId("s"))
        assert ledger.grants() == held
        assert ledger.is_stopped(SandboxId("s"))  # in memory: a late CreateContainer in this sandbox gets nothing
        assert {period.pod for period in read_history(path)} == {one.pod for one in held}
        with pytest.raises(StateError):
            ledger.release(PodUid("pod-1"), end=End(at=NOW))
        assert ledger.grants() == held
        filler.unlink()
        ledger.record(grant("late", devices=whole(3)))
        ledger.release(PodUid("pod-1"), end=End(at=NOW))
        ledger.tombstone(SandboxId("s"), 2)  # kubelet stops it again
        held = ledger.grants()
    with Ledger.open(path) as again:
        assert set(again.grants()) == set(held)
        assert again.tombstones() == {SandboxId("s"): 1}  # the time of the first stop
    assert {period.pod for period in read_history(path) if period.end is None} == {one.pod for one in held}


def test_a_ledger_cannot_be_made_on_a_full_disk_and_leaves_no_half_one(small_disk: Path) -> None:
    filler = fill(small_disk)
    with pytest.raises(StateError) as e:
        Ledger.open(small_disk / "node.db")
    assert REBUILD not in e.value.hint
    filler.unlink()
    with Ledger.open(small_disk / "node.db") as ledger:
        assert ledger.grants() == ()


def test_a_disk_that_turns_read_only_refuses_the_grant(small_disk: Path) -> None:
    path = small_disk / "node.db"
    Ledger.open(path).close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StateError) as e:
        Ledger.open(path)
    assert str(path) in e.value.message
    assert REBUILD not in e.value.hint


def unlink(path: Path) -> None:
    path.unlink()


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


@pytest.mark.parametrize("deleted", [unlink, replace_by_a_copy])
def test_a_ledger_that_is_deleted_from_its_path_takes_no_grant(path: Path, deleted: Callable[[Path], None]) -> None:
    """Check that no grant is written once the file was deleted or replaced: such writes are lost with the daemon."""
    with Ledger.open(path) as ledger:
        held = ledger.grants()
        deleted(path)
        with pytest.raises(StateError) as e:
            ledger.record(grant("late", devices=whole(3)))
        assert str(path) in e.value.message
        assert REBUILD in e.value.hint
        assert ledger.grants() == held


def test_the_grant_that_is_there_already_needs_no_disk(small_disk: Path) -> None:
    """Check a container that restarts while the disk is full."""
    with Ledger.open(small_disk / "node.db") as ledger:
        ledger.record(grant(containers={"c0": "s"}))
        fill(small_disk)
        with contextlib.suppress(StateError):
            for n in range(1, 200):
                ledger.record(grant(f"pod-{n + 1}", devices=vfs(n)))
        held = ledger.grants()
        ledger.record(grant())
        for other in (grant(sandbox="another"), grant(containers={"c1": "s"})):
            with pytest.raises(StateError):
                ledger.record(other)
        assert ledger.grants() == held


def test_a_write_that_fails_leaves_nothing_half_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second statement of a change fail, and check that the first is undone."""
    one = grant("pod-x", containers={"c0": "s", "c1": "s"})
    with Ledger.open(path) as ledger:
        before = ledger.grants()
        with monkeypatch.context() as patch:
            patch.setattr("hooks.ledger.store._SEE", "INSERT INTO absent VALUES (?, ?, ?, ?)")
            with pytest.raises(StateError):
                ledger.record(one)
        assert ledger.grants() == before
        ledger.record(one)  # no transaction was left open
    with Ledger.open(path) as again:
        assert set(again.grants()) == {*before, one}


@pytest.mark.parametrize("statement", ["_INSERT", "_END"])
def test_nothing_is_granted_or_freed_that_the_history_does_not_take(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    new = grant("pod-x", devices=vfs(60))
    with Ledger.open(path) as ledger:
        before, periods = ledger.grants(), read_history(path)
        with monkeypatch.context() as patch:
            patch.setattr(f"hooks.ledger.history.{statement}", "INSERT INTO absent VALUES (?)")
            with pytest.raises(StateError):
                ledger.record(new) if statement == "_INSERT" else ledger.release(PodUid("pod-7"), end=End(at=NOW))
        assert (ledger.grants(), read_history(path)) == (before, periods)
        ledger.record(new)
        ledger.release(PodUid("pod-7"), end=End(at=NOW))
    assert held_in(read_history(path)) == {f"pod-{n}" for n in range(50) if n != 7} | {"pod-x"}


def held_in(periods: tuple[Period, ...]) -> set[str]:
    return {period.pod for period in periods if period.end is None}


def test_another_programs_lock_is_waited_for_and_then_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooks.ledger.file._BUSY_MS", 20)
    shell = sqlite3.connect(path, isolation_level=None)
    with Ledger.open(path) as ledger:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError) as e:
            ledger.record(grant("pod-x"))
        assert "fuser" in e.value.hint
        shell.execute("ROLLBACK")
        ledger.record(grant("pod-x"))
    shell.close()


# the process

_WRITER = """
import sys
from pathlib import Path
from hooks.ledger.period import End
from hooks.ledger.store import Ledger
from lading.vocabulary import ContainerId, PodUid, SandboxId
from tests.fakes.holders import grant, vfs
ledger = Ledger.open(Path(sys.argv[1]))
for n in range(10**9):
    pod = f"pod-{n}"
    ledger.record(grant(pod, devices=vfs(n % 256), containers={f"c{n}": "s"}))
    ledger.tombstone(SandboxId(pod), n)
    if n % 3 == 0:
        ledger.release(PodUid(pod), end=End(at=n))
    print(n, flush=True)
"""


@pytest.mark.parametrize("answered", [0, 1, 37, 400])
def test_killed_in_the_middle_of_writes_nothing_answered_is_lost(tmp_path: Path, answered: int) -> None:
    path = tmp_path / "node.db"
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as child:
        assert child.stdout is not None
        last = -1
        for line in child.stdout:
            last = int(line)
            if last >= answered:
                break
        child.send_signal(signal.SIGKILL)
        last = max([last, *map(int, child.stdout.read().split())])
    assert last >= answered
    with Ledger.open(path) as ledger:
        grants = {g.pod: g for g in ledger.grants()}
        for n in range(last + 1):
            pod = PodUid(f"pod-{n}")
            assert ledger.is_stopped(SandboxId(pod))
            if n % 3 == 0:
                assert pod not in grants
            else:
                assert grants.pop(pod) == grant(pod, devices=vfs(n % 256), containers={f"c{n}": "s"})
        # at most the one that was not answered yet, and then all of it
        assert [g for g in grants.values() if not g.containers] == []
        assert len(grants) <= 1
        held = {g.pod for g in ledger.grants()}
    periods = read_history(path)
    assert held_in(periods) == held
    assert len({period.pod for period in periods}) == len(periods) >= last + 1
    over = {period.pod: period.end for period in periods if period.end}
    assert {f"pod-{n}": End(at=n) for n in range(0, last + 1, 3)}.items() <= over.items()


def test_what_can_be_read_of_a_damaged_history_goes_on_in_the_new_ledger(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.release(PodUid("pod-1"), end=End(at=NOW - 5))
    execute(
        "DROP TRIGGER history_is_not_rewritten",
        "UPDATE history SET devices = '{' WHERE pod_uid = 'pod-2'",
        "UPDATE grants SET form = 'x'",
    )(path)
    _, kept = replace_ledger(path, [grant("pod-7", devices=vfs(7)), grant("pod-2", devices=vfs(2))], now=NOW)
    assert kept == 49
    ended = {period.pod: period.end for period in read_history(path)}
    assert ended == {f"pod-{n}": End(at=NOW, how=Ended.LOST) for n in range(50)} | {
        "pod-1": End(at=NOW - 5),
        "pod-2": None,
        "pod-7": None,
    }


def test_the_application_id_is_in_the_header(path: Path) -> None:
    """Check the application id in the header, by which `file node.db` identifies a ledger. It must not change."""
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"LDNG"
