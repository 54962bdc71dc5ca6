"""Test `lading-hooks copy-libraries` and `remove-state` on folders of a test."""

from pathlib import Path

import pytest

from hooks.daemon import container_commands
from hooks.daemon.handler_command import handler_program
from hooks.daemon.settings import Settings
from hooks.frontends.nri.guard import handler
from hooks.frontends.nri.guard.launched import PROGRAM, VERSION_MARK
from hooks.host.cdi_files import spec_path
from hooks.isolation.library import LIBRARIES
from hooks.ledger.store import Ledger
from hooks.main import main
from hooks.model.cdi import KINDS
from lading.selinux import FOR_CONTAINERS, read_label
from tests.fakes import holders
from tests.fakes.selinux import enable_selinux


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "hooks.toml"
    run = tmp_path / "run/lading"
    run.mkdir(parents=True)
    keys = {"listen": run / "hooks.sock", "shares_socket": run / "shares.sock", "shares_dir": run / "shares"}
    keys |= {"state_dir": tmp_path / "state", "cdi_dir": tmp_path / "cdi", "nri_plugin_path": tmp_path / "plugins"}
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    (run / "shares/old").mkdir(parents=True)
    for name in ("hooks.sock", "hooks.sock.lock", "shares.sock.lock", "nri-guard.lock", "shares/old/grant.json"):
        (run / name).touch()
    return ["remove-state", "--config", str(path)]


def refused(config: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as e:
        main(config)
    assert e.value.code
    return capsys.readouterr().err


def test_all_that_is_ladings_goes(config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(tmp_path / "state/node.db"):
        pass
    (tmp_path / "state/node.db.damaged-1").touch()
    main(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hooks.toml", "run"]
    assert list((tmp_path / "run").iterdir()) == []
    assert capsys.readouterr().out == "removed\n"
    main(config)
    assert "nothing" in capsys.readouterr().out


def test_the_launched_guard_and_cdi_specs_go_too(config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins, specs = tmp_path / "plugins", tmp_path / "cdi"
    for folder in (plugins, specs):
        folder.mkdir()
    for path in (plugins / PROGRAM, plugins / "10-of-another", spec_path(specs, KINDS[0]), specs / "nvidia.yaml"):
        path.write_text(f"{VERSION_MARK}1\0")
    main(config)
    assert [path.name for path in (*plugins.iterdir(), *specs.iterdir())] == ["10-of-another", "nvidia.yaml"]
    assert capsys.readouterr().out == "removed the launched guard\n"


def test_the_launched_guard_stays_while_a_pod_holds_a_device(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(tmp_path / "state/node.db") as ledger:
        ledger.record(holders.grant())
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / PROGRAM).write_text(f"{VERSION_MARK}1\0")
    refused(config, capsys)
    assert (tmp_path / "plugins" / PROGRAM).exists()


def test_nothing_goes_while_the_runtime_cannot_say_whether_pods_need_its_handler(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(tmp_path / "state/node.db"):
        pass
    program = handler_program(Settings(state_dir=str(tmp_path / "state")))
    program.parent.mkdir()
    program.write_text(f"{handler.VERSION_MARK}1\0")
    assert "ListPodSandbox" in refused([*config, "--runtime-endpoint", str(tmp_path / "none.sock")], capsys)
    assert program.exists()
    assert (tmp_path / "state/node.db").exists()


def test_a_file_of_others_stays_and_its_folder_is_named(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(tmp_path / "state/node.db"):
        pass
    (tmp_path / "run/lading/of-another").touch()
    main(config)
    assert [path.name for path in (tmp_path / "run/lading").iterdir()] == ["of-another"]
    assert str(tmp_path / "run/lading") in capsys.readouterr().out


def test_it_is_refused_while_a_pod_holds_a_device(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grant = holders.grant()
    with Ledger.open(tmp_path / "state/node.db") as ledger:
        ledger.record(grant)
    assert f"{grant.namespace}/{grant.pod_name}" in refused(config, capsys)
    assert (tmp_path / "state/node.db").exists()


def test_it_is_refused_while_lading_hooks_runs(config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(tmp_path / "state/node.db"):
        assert "another lading-hooks" in refused(config, capsys)


def test_libraries_are_copied_and_one_that_is_in_use_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, there = tmp_path / "ours", tmp_path / "there"
    ours.mkdir()
    monkeypatch.setattr(container_commands, "share_libraries", lambda _: ours)
    monkeypatch.setattr(container_commands, "built_program", lambda: ours / "lading-ldcache")
    (ours / "lading-ldcache").write_text("hook")
    for name in LIBRARIES:
        (ours / name).write_text("1")
    main(["copy-libraries", str(there)])
    first = (there / LIBRARIES[0]).stat().st_ino
    main(["copy-libraries", str(there)])
    assert (there / LIBRARIES[0]).stat().st_ino == first
    with (there / LIBRARIES[0]).open() as held:
        (ours / LIBRARIES[0]).write_text("2")
        main(["copy-libraries", str(there)])
        assert held.read() == "1"
    expected = {LIBRARIES[0]: "2", LIBRARIES[1]: "1", "lading-ldcache": "hook"}
    assert {path.name: path.read_text() for path in there.iterdir()} == expected
    assert (there / "lading-ldcache").stat().st_mode & 0o111 == 0o111


def test_on_a_host_with_selinux_containers_may_use_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, there, host = tmp_path / "ours", tmp_path / "there", tmp_path / "host"
    ours.mkdir()
    monkeypatch.setattr(container_commands, "share_libraries", lambda _: ours)
    monkeypatch.setattr(container_commands, "built_program", lambda: ours / "lading-ldcache")
    for name in LIBRARIES:
        (ours / name).write_text("1")
    main(["copy-libraries", str(there)])
    assert {read_label(path) for path in (there, *there.iterdir())} == {""}
    enable_selinux(host)
    main(["copy-libraries", str(there), "--host-root", str(host)])
    assert {read_label(path) for path in (there, *there.iterdir())} == {FOR_CONTAINERS}
