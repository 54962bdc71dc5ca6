import sys

import pytest

from simnode import progress

SAYS = (
    "import sys; sys.stdout.buffer.write(b'one\\n\\xff two\\n'); sys.stdout.flush(); "
    "sys.stderr.write('three\\n'); sys.exit({status})"
)


def run(status: int) -> int:
    return progress.run("installing", [sys.executable, "-c", SAYS.format(status=status)])


def test_the_output_of_a_command_that_succeeds_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(0) == 0
    assert capsys.readouterr().out == "installing\n"


def test_after_a_failure_all_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(3) == 3
    assert set(capsys.readouterr().out.splitlines()) == {"installing", "one", "\ufffd two", "three"}


def test_a_long_command_shows_its_last_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    assert run(0) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["one", "two", "three"]
