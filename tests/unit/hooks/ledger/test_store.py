import shutil
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.ledger.period import End
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.store import Ledger, read_ledger, replace_ledger
from hooks.model.grant import HeldBy, holding_of
from lading.errors import HostError, StateError
from lading.vocabulary import ContainerId, GpuUuid, PodUid, SandboxId
from tests.fakes.holders import NOW, grant, vfs, whole
from tests.unit.hooks.ledger.conftest import reopened

POD = PodUid("pod-1")
S0, S1 = SandboxId("pod-1-s0"), SandboxId("pod-1-s1")
C0, C1 = ContainerId("c0"), ContainerId("c1")
END = End(at=NOW)


def test_a_new_ledger_is_empty_and_ours_alone(ledger: Ledger) -> None:
    assert ledger.grants() == ()
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in ledger.path.parent.iterdir()} == {0o600}


def test_what_was_recorded_is_there_after_a_restart(ledger: Ledger) -> None:
    first, second = grant(granted_at=1), grant("pod-2", "side", vfs(1, 2), granted_at=2)
    ledger.record(first)
    ledger.record(second)
    ledger.add_container(POD, "train", C0, S0)
    ledger.tombstone(S1, 77)
    before = ledger.grants()
    assert before == (replace(first, containers=(HeldBy(id=C0, sandbox=S0),)), second)
    with reopened(ledger) as again:
        assert again.grants() == before
        assert again.find(POD, "train") == before[0]
        assert again.find(POD, "side") is None
        assert dict(again.tombstones()) == {S1: 77}
        assert again.is_stopped(S1)
        assert not again.is_stopped(S0)


def test_held_cards_and_the_newest_assignment_follow_what_is_recorded_and_released(ledger: Ledger) -> None:
    def held() -> tuple[set[GpuUuid], int, int]:
        return set(ledger.cards), ledger.newest_gen(POD), ledger.newest_gen(PodUid("pod-2"))

    zero, one = (whole(number).gpus[0].uuid for number in range(2))
    ledger.record(replace(grant(devices=whole(0)), gen=3))
    ledger.record(replace(grant(container="side", devices=whole(0)), gen=5))
    ledger.record(replace(grant("pod-2", devices=whole(1)), gen=2))
    assert held() == ({zero, one}, 5, 2)
    with reopened(ledger) as again:
        assert (again.cards, again.newest_gen(POD)) == (ledger.cards, 5)
        again.release(POD, "side", end=END)
        assert (set(again.cards), again.newest_gen(POD)) == ({zero, one}, 3)
        again.release(POD, end=END)
        assert (set(again.cards), again.newest_gen(POD), again.newest_gen(PodUid("pod-2"))) == ({one}, 0, 2)


def test_recording_again_moves_a_grant_to_its_newer_sandbox(ledger: Ledger) -> None:
    ledger.record(grant())
    ledger.add_container(POD, "train", C0, S0)
    ledger.record(grant(sandbox=S1))
    with reopened(ledger) as again:
        (result,) = again.grants()
        assert result.sandbox == S1
        assert [c.id for c in result.containers] == [C0]


def test_an_existing_grant_wins(ledger: Ledger) -> None:
    ledger.record(grant(devices=whole(0)))
    with pytest.raises(StateError, match="pod-1"):
        ledger.record(grant(devices=whole(1)))
    with reopened(ledger) as again:
        assert [g.devices for g in again.grants()] == [whole(0)]


def test_what_could_not_be_read_back_is_not_written(ledger: Ledger) -> None:
    bad = grant()
    gpus = (replace(bad.devices.gpus[0], uuid=GpuUuid("GPU 0")),)
    with pytest.raises(StateError):
        ledger.record(replace(bad, devices=replace(bad.devices, gpus=gpus)))
    assert ledger.grants() == ()
    with reopened(ledger) as again:
        assert again.grants() == ()


def test_containers_come_and_go(ledger: Ledger) -> None:
    ledger.record(grant())
    for _ in range(2):
        ledger.add_container(POD, "train", C1, S0)
        ledger.add_container(POD, "train", C0, S0)
    ledger.add_container(POD, "absent", ContainerId("c2"), S0)
    (result,) = ledger.grants()
    assert [c.id for c in result.containers] == [C0, C1]
    ledger.forget_containers([C0])
    with reopened(ledger) as again:
        assert [c.id for c in again.grants()[0].containers] == [C1]


def test_release_of_a_pod_and_of_one_container(ledger: Ledger) -> None:
    train, side, other = grant(), grant(container="side"), grant("pod-2", devices=whole(1))
    for one in (train, side, other):
        ledger.record(one)
    ledger.add_container(POD, "train", C0, S0)
    assert ledger.release(POD, "side", end=END) == (side,)
    assert ledger.release(POD, "side", end=END) == ()
    assert [g.key for g in ledger.release(POD, end=END)] == [train.key]
    with reopened(ledger) as again:
        assert again.grants() == (other,)
        again.record(train)
        with reopened(again) as once_more:
            assert set(once_more.grants()) == {other, train}  # the container of the released grant went too


def test_tombstones_keep_the_first_time_and_can_be_forgotten(ledger: Ledger) -> None:
    ledger.tombstone(S0, 5)
    ledger.tombstone(S0, 9)
    assert dict(ledger.tombstones()) == {S0: 5}
    ledger.forget_sandbox(S1)
    ledger.forget_sandbox(S0)
    with reopened(ledger) as again:
        assert not again.is_stopped(S0)


def test_held_by_others_is_all_but_this_container(ledger: Ledger) -> None:
    ledger.record(grant())
    ledger.record(grant(container="side", devices=whole(1)))
    ledger.record(grant("pod-2", devices=vfs(3)))
    held = ledger.held_by_others(POD, "train")
    assert [(h.pod, h.pod_name, h.container, h.devices) for h in held] == [
        (POD, "default/name-of-pod-1", "side", whole(1)),
        ("pod-2", "default/name-of-pod-2", "train", vfs(3)),
    ]


def test_one_process_at_a_time(ledger: Ledger, path: Path) -> None:
    with pytest.raises(HostError, match="state"):
        Ledger.open(path)
    with pytest.raises(HostError, match="state"):
        replace_ledger(path, (), now=NOW)
    ledger.record(grant())
    reopened(ledger).close()


def test_a_person_may_scan_meanwhile(ledger: Ledger, path: Path) -> None:
    ledger.record(grant())
    shell = sqlite3.connect(path)
    assert shell.execute("SELECT pod_uid, devices FROM grants").fetchall() == [
        ("pod-1", '{"gpus":[{"uuid":"GPU-00000000-0000-0000-0000-000000000000"}]}')
    ]
    shell.close()


def test_an_older_schema_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(path) as ledger:
        ledger.record(grant())
    step = (
        "CREATE TABLE vf_journal (bdf TEXT PRIMARY KEY, step TEXT NOT NULL) STRICT",
        "INSERT INTO vf_journal VALUES ('a', 'b')",
    )
    monkeypatch.setattr("hooks.ledger.file.MIGRATIONS", (*MIGRATIONS, step))
    for _ in range(2):  # once only
        with Ledger.open(path) as ledger:
            assert ledger.grants() == (grant(),)
    shell = sqlite3.connect(path)
    assert shell.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    assert shell.execute("SELECT * FROM vf_journal").fetchall() == [("a", "b")]
    shell.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(path).close()
    with monkeypatch.context() as patch:
        patch.setattr("hooks.ledger.file.MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE x (y)", "nonsense")))
        with pytest.raises(StateError):
            Ledger.open(path)
    Ledger.open(path).close()


def test_replacing_sets_the_old_one_aside(ledger: Ledger, path: Path) -> None:
    ledger.record(grant())
    ledger.close()
    rebuilt = grant("pod-2", devices=whole(3), containers={"c7": "pod-2-s0"})
    aside, _ = replace_ledger(path, [rebuilt], now=NOW)
    assert aside == path.with_name("node.db.damaged-1")
    with Ledger.open(path) as again:
        assert again.grants() == (rebuilt,)
    assert replace_ledger(path, [], now=NOW)[0] == path.with_name("node.db.damaged-2")
    shell = sqlite3.connect(aside)
    assert shell.execute("SELECT pod_uid FROM grants").fetchall() == [("pod-1",)]
    shell.close()


def test_replacing_after_a_crash_does_not_replay_the_old_log(path: Path, ledger: Ledger) -> None:
    ledger.record(grant())
    crashed = path.parent.with_name("crashed") / path.name
    shutil.copytree(path.parent, crashed.parent)
    assert crashed.with_name("node.db-wal").stat().st_size > 0
    rebuilt = grant("pod-2", devices=whole(3))
    aside, _ = replace_ledger(crashed, [rebuilt], now=NOW)
    with Ledger.open(crashed) as again:
        assert again.grants() == (rebuilt,)
    assert aside is not None
    with Ledger.open(aside) as old:  # and it is whole where it was put
        assert old.grants() == (grant(),)


def test_replacing_what_is_not_there_makes_it(path: Path) -> None:
    assert replace_ledger(path, [grant()], now=NOW) == (None, 0)
    with Ledger.open(path) as ledger:
        assert ledger.grants() == (grant(),)


# looked at from beside


def test_a_ledger_can_be_read_beside_its_daemon(ledger: Ledger) -> None:
    """Read the records that are only in the log too, while the daemon continues to write."""
    for number in range(3):
        one = grant(f"pod-{number}", devices=whole(number), granted_at=number)
        ledger.record(one)
        ledger.add_container(one.pod, one.container, ContainerId(f"c{number}"), one.sandbox)
        assert read_ledger(ledger.path) == ledger.grants()
    ledger.release(POD, end=END)
    assert [result.pod for result in read_ledger(ledger.path)] == ["pod-0", "pod-2"]


def test_looking_changes_nothing(ledger: Ledger) -> None:
    ledger.record(grant())
    ledger.close()
    before = ledger.path.read_bytes()
    assert [result.pod for result in read_ledger(ledger.path)] == [POD]
    assert ledger.path.read_bytes() == before


def test_where_there_is_no_ledger_no_one_holds_anything(path: Path) -> None:
    assert read_ledger(path) == ()
    assert not path.parent.exists()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_a_damaged_ledger_is_no_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.db").write_bytes(content)
    with pytest.raises(StateError) as e:
        read_ledger(tmp_path / "node.db")
    assert str(tmp_path / "node.db") in e.value.message


def test_what_a_grant_holds_for_others() -> None:
    one = grant()
    held = holding_of(one)
    assert (held.pod, held.pod_name, held.container, held.devices) == (POD, "default/name-of-pod-1", "train", one.devices)
