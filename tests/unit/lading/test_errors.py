import pytest

from lading.errors import ConfigError, HostError, LadingError, die


def test_die_says_what_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        die(ConfigError("cannot read a\x1b[2Jb\nhint: lie", hint="look"))
    assert e.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert r"a\x1b[2Jb\x0ahint: lie" in lines[0]
    assert "look" in lines[1]


@pytest.mark.parametrize("error", ["cannot do it: no", HostError("cannot do it: no")])
def test_die_without_hint_is_one_line(error: LadingError | str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        die(error)
    assert e.value.code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
