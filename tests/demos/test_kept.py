"""Check what `DEMO_KEEP=1` leaves running, and run each command that it prints as printed, by a shell."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import ROOT

# For each command, by a part of it: a part of its output.
SHOWS = {
    "lading nodes": "h100-1",
    "lading node ": "default/whole-gpus",
    "lading why": "no-card-large-enough",
    "lading pod ": "runs on node desk-1",
    "lading pods": "two-shares",
    "lading simulate": "too-few-free-gpus",
    "lading sysdump": "sysdump.tar.gz",
    "tail": "bind.confirmed",
}


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[list[str]]:
    """The commands, without the last of them, which then ends what was left running, and removes all of it."""
    env = {**os.environ, "DEMO_KEEP": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "simnode.demo_central"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *commands, stop = commands_of(done.stdout)
    yield commands
    subprocess.run(["sh", "-c", stop], cwd=ROOT, check=True)
    assert list(tmp_path.iterdir()) == []


def commands_of(output: str) -> list[str]:
    lines = output.partition("things to try")[2].splitlines()[1:]
    return [line.strip() for line in lines if line.startswith("     ") and not line.startswith("     #")]


def test_every_command_works_as_printed(printed: list[str]) -> None:
    export, *commands = printed
    assert len(commands) == len(SHOWS)
    for command, (name, shows) in zip(commands, SHOWS.items(), strict=True):
        assert name in command
        done = subprocess.run(["sh", "-c", f"{export}\n{command}"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, "warning" in done.stderr) == (0, False), f"{command}\n{done.stdout}{done.stderr}"
        assert shows in done.stdout, f"{command}\n{done.stdout}{done.stderr}"
