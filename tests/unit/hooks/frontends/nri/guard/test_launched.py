"""Test the installation of the launched guard in the runtime's folder of plugins."""

from pathlib import Path

import pytest

from hooks.frontends.nri.guard.launched import GUARD, PROGRAM, VERSION_MARK, find_strays
from hooks.main import main


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write(tmp_path / "ladingguard", "1.2.3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "opt/nri/plugins"


def write(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0" + VERSION_MARK.encode() + version.encode() + b"\0rest")
    return path


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def install(program: Path, folder: Path) -> None:
    main(["install-guard", "--program", str(program), "--nri-plugin-path", str(folder)])


def refused(capsys: pytest.CaptureFixture[str], *text: object) -> str:
    with pytest.raises(SystemExit):
        main([*map(str, text)])
    return capsys.readouterr().err


def test_it_is_installed_and_nothing_else_is_left(program: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(program, folder)
    (only,) = folder.iterdir()
    assert (only.name, only.stat().st_mode & 0o777, only.read_bytes()) == (PROGRAM, 0o755, program.read_bytes())
    output = capsys.readouterr().out
    assert "version 1.2.3" in output
    assert "at its next start" in output


def test_one_of_an_older_version_is_replaced_in_one_step(program: Path, folder: Path) -> None:
    old = write(folder / PROGRAM, "1.0.0").stat().st_ino
    install(program, folder)
    assert GUARD.find_version(folder / PROGRAM) == "1.2.3"
    assert (folder / PROGRAM).stat().st_ino != old


def test_while_it_is_written_no_name_in_the_folder_keeps_containerd_from_starting(
    program: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[list[str]] = []
    replace = Path.replace

    def scan(path: Path, target: Path) -> Path:
        observed.append([name for name in names(folder) if not (folder / name).is_dir()])
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", scan)
    install(program, folder)
    assert observed
    assert all(there == [] for there in observed)


@pytest.mark.parametrize("name", ["stray", "9-a", "099-a", "ab-c", "99_x"])
def test_only_executables_that_are_no_plugins_are_strays(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    for one in (name, "10-other", "99-ladingguard.bak"):
        (folder / one).touch(0o755)
    (folder / "readme").touch(0o644)
    (folder / "folder").mkdir()
    assert find_strays(folder) == (name,)
    assert find_strays(folder / "none") == ()


def test_it_is_not_installed_beside_a_file_with_which_containerd_does_not_start(
    program: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(parents=True)
    (folder / "stray").touch(0o700)
    output = refused(capsys, "install-guard", "--program", program, "--nri-plugin-path", folder)
    assert str(folder / "stray") in output
    assert names(folder) == ["stray"]


@pytest.mark.parametrize("command", ["install-guard", "remove-guard"])
def test_another_file_of_its_name_stays(program: Path, folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir(parents=True)
    (folder / PROGRAM).write_text("#!/bin/sh\n")
    (folder / PROGRAM).chmod(0o755)
    text = ["--program", program] if command == "install-guard" else []
    assert "no guard of Lading" in refused(capsys, command, *text, "--nri-plugin-path", folder)
    assert (folder / PROGRAM).read_text() == "#!/bin/sh\n"


def test_a_link_of_its_name_is_not_followed(program: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir(parents=True)
    (folder / PROGRAM).symlink_to(program)
    assert "no guard of Lading" in refused(capsys, "remove-guard", "--nri-plugin-path", folder)
    assert program.exists()


def test_what_is_no_guard_is_not_installed(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_text("x")
    for program in (tmp_path / "other", tmp_path / "none"):
        assert "is none" in refused(capsys, "install-guard", "--program", program, "--nri-plugin-path", folder)
    assert not folder.exists()


def test_it_is_removed_once(program: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(program, folder)
    main(["remove-guard", "--nri-plugin-path", str(folder)])
    assert names(folder) == []
    main(["remove-guard", "--nri-plugin-path", str(folder)])
    assert "is not there" in capsys.readouterr().out


def test_a_file_without_a_version_has_none(tmp_path: Path) -> None:
    assert GUARD.find_version(tmp_path / "none") == ""
    assert GUARD.find_version(tmp_path) == ""
    assert GUARD.find_version(write(tmp_path / "odd", "1 2")) == ""
