"""Check what `DEMO_KEEP=1 make demo` leaves running, and run each command that it prints as printed, by a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simnode.containerd import PrivateContainerd
from simnode.demo import REFUSED
from tests.demos.test_kept import commands_of
from tests.docs import ROOT

# For each command, in their order: a part of its output.
SHOWS = (
    "default/train",
    "default/seventy",
    "grant.created",
    "grant.created",
    "device-held",
    "default/by-hand",
    "container main",
    "daemon.started",
)


@pytest.mark.long
def test_every_command_works_as_printed(containerd: PrivateContainerd, short_folder: Path) -> None:
    """Run each command. The fixture `containerd` skips the test on machines without containerd."""
    env = {**os.environ, "DEMO_KEEP": "1", "TMPDIR": str(short_folder)}
    demo = [sys.executable, "-m", "simnode.demo"]
    done = subprocess.run(demo, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *commands, stop = commands_of(done.stdout)
    try:
        for command, shows in zip(commands, SHOWS, strict=True):
            ran = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
            assert ran.returncode == (REFUSED if command.endswith("lading.dev/gpus=0") else 0), (
                f"{command}\n{ran.stdout}{ran.stderr}"
            )
            assert shows in ran.stdout, f"{command}\n{ran.stdout}{ran.stderr}"
    finally:
        subprocess.run(["sh", "-c", stop], cwd=ROOT, check=True)
    assert not list(short_folder.glob("lading-demo-*"))
