"""Boot guests whose QEMU is a shell that writes its pid, and nothing on the console: no guest outlives its owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lading.errors import HostError
from simnode.patience import wait_until
from simnode.vm import boot, guest
from simnode.vm.guest import Guest
from simnode.vm.image import Image
from simnode.vm.qemu import Qemu
from simnode.vm.systems import SYSTEMS

BOOT = """
import sys
from pathlib import Path
from tests.unit.simnode.vm.test_guest import make_guest
with make_guest(Path(sys.argv[1])):
    pass
"""


def make_guest(folder: Path) -> Guest:
    files = {name: folder / name for name in ("kernel", "initrd", "disk", "key")}
    qemu = Qemu(system=("sh", "-c", f"echo $$ >>{folder}/pids; exec sleep 600", "qemu"), img=("true",))
    return Guest(Image(system=SYSTEMS[0], **files), qemu)


def read_pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_boot_that_hangs_is_tried_again_and_then_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "IDLE_S", 0.2)
    monkeypatch.setattr(guest, "_POLL_S", 0.05)
    with pytest.raises(HostError, match="it hung 4 times"), make_guest(tmp_path):
        pass
    pids = read_pids(tmp_path)
    assert len(pids) == 4
    assert all(map(ended, pids))


def test_qemu_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", BOOT, str(tmp_path)], env=env) as owner:
        wait_until(lambda: read_pids(tmp_path), "the start of QEMU")
        owner.send_signal(signal.SIGKILL)
    (pid,) = read_pids(tmp_path)
    try:
        wait_until(lambda: ended(pid), "the end of QEMU")
    finally:
        if not ended(pid):
            os.kill(pid, signal.SIGKILL)
