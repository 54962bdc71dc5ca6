"""Test processes as the real /proc shows them."""

import os
import subprocess
from pathlib import Path

from hooks.host.processes import find_mapped, is_ending

HOST = Path("/")


def test_a_process_that_runs_is_not_ending_and_one_that_has_ended_is() -> None:
    assert not is_ending(HOST, os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not is_ending(HOST, child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
        assert is_ending(HOST, child.pid)
    assert is_ending(HOST, child.pid)


def test_a_mapped_file_is_found_by_its_name() -> None:
    assert find_mapped(HOST, os.getpid(), "libc.so").endswith("/libc.so.6")
    assert find_mapped(HOST, os.getpid(), "libcuda.so") == ""


def test_a_path_that_a_program_chose_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    path = f"/a b/{'x' * 4000}/libcuda.so.1"
    (tmp_path / "proc/7/maps").write_text(f"7f00-7f01 r-xp 0000 08:01 12  {path}\n")
    assert find_mapped(tmp_path, 7, "libcuda.so") == path[:200]
    assert find_mapped(tmp_path, 8, "libcuda.so") == ""
