"""Test the help of lading-hooks: commands first, then the flags of the daemon by group."""

import re

import pytest

from hooks.daemon.settings import GROUPS, Settings
from hooks.main import main
from lading.settings import declared


def test_help_shows_every_command_before_the_flags_of_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    commands = re.findall(r"^  ([a-z-]+)  +[a-z]", output.partition("\noptions:")[0], re.MULTILINE)
    assert {"ledger", "release", "render", "remove-state"} <= set(commands)
    assert output.index("commands (") < output.index("--config FILE")
    for name in commands:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0


def test_help_shows_the_flags_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [key for key, *_ in declared(Settings)]
    assert GROUPS.keys() <= set(keys)
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    titles = re.findall(r"^([^ \n].*):$", output, re.MULTILINE)
    assert titles[-len(GROUPS) :] == [*GROUPS.values()]
    assert output.index("  --metrics") > output.index(GROUPS["metrics"])
