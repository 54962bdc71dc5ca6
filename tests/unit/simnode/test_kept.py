"""What `DEMO_KEEP=1 make demo-central` leaves running, and the commands that it prints."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import ROOT


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[list[str]]:
    """The commands; what was left is ended with the last of them."""
    env = {**os.environ, "DEMO_KEEP": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "simnode.demo_central"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.partition("things to try")[2].splitlines()[1:]
    commands = [line.strip() for line in lines if line.startswith("     ")]
    yield commands
    subprocess.run(shlex.split(commands[-1]), cwd=ROOT, check=True)


def test_every_command_works_as_printed(printed: list[str]) -> None:
    export, *commands, _ = printed
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(["sh", "-c", f"{export}; {command}"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
