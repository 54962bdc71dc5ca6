"""Test processes as the real /proc shows them."""

import os
import subprocess
from pathlib import Path

from hooks.host.processes import is_ending

HOST = Path("/")


def test_a_process_that_runs_is_not_ending_and_one_that_has_ended_is() -> None:
    assert not is_ending(HOST, os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not is_ending(HOST, child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
        assert is_ending(HOST, child.pid)
    assert is_ending(HOST, child.pid)
