"""Test `lading-hooks install-handler` and `remove-handler` on folders of a test; with a runtime:
tests/node/test_nri_handler.py."""

from pathlib import Path

import pytest

from hooks.frontends.nri.guard.handler import PROGRAM, RUNC, VERSION_MARK
from hooks.main import main


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write(tmp_path / "built", "1.2.3")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "state/bin" / PROGRAM


def write(path: Path, version: str) -> Path:
    path.write_bytes(VERSION_MARK.encode() + version.encode() + b"\0")
    return path


def run(command: str, there: Path, *text: object) -> None:
    main([command, "--state-dir", str(there.parents[1]), *map(str, text)])


def test_it_is_put_below_the_state_directory_and_replaced_in_one_step(
    program: Path, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install-handler", there, "--program", program)
    assert (there.read_bytes(), there.stat().st_mode & 0o777) == (program.read_bytes(), 0o755)
    assert f"{there}: version 1.2.3" in capsys.readouterr().out
    before = there.stat().st_ino
    run("install-handler", there, "--program", write(program, "1.2.4"))
    assert RUNC.find_version(there) == "1.2.4"
    assert there.stat().st_ino != before
    assert [one.name for one in there.parent.iterdir()] == [PROGRAM]


def test_what_is_no_handler_is_neither_installed_nor_replaced_nor_removed(
    program: Path, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("install-handler", there, "--program", program.with_name("none"))
    assert "is none" in capsys.readouterr().err
    there.parent.mkdir(parents=True)
    there.write_text("#!/bin/sh\n")
    for text in (("install-handler", there, "--program", program), ("remove-handler", there)):
        with pytest.raises(SystemExit):
            run(*text)
        assert "no runtime handler of Lading" in capsys.readouterr().err
    assert there.read_text() == "#!/bin/sh\n"


def test_one_that_is_not_there_is_not_asked_for(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("remove-handler", there, "--runtime-endpoint", "/nowhere.sock")
    assert "not there" in capsys.readouterr().out
