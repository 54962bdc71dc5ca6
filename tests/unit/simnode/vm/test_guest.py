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

# `make vm` with such a QEMU. As in a background process of a shell, SIGINT is ignored at first.
MAKE_VM = """
import signal
import sys
from pathlib import Path
from simnode.vm import __main__ as vm
from tests.unit.simnode.vm.test_guest import make_image, make_qemu
folder = Path(sys.argv.pop())
vm.build_image = lambda system: make_image(folder)
vm.find_qemu = lambda: make_qemu(folder)
signal.signal(signal.SIGINT, signal.SIG_IGN)
vm.main()
"""


def make_image(folder: Path) -> Image:
    files = {name: folder / name for name in ("kernel", "initrd", "disk", "key")}
    return Image(system=SYSTEMS[0], **files)


def make_qemu(folder: Path) -> Qemu:
    return Qemu(system=("sh", "-c", f"echo $$ >>{folder}/pids; exec sleep 600", "qemu"), img=("true",))


def read_pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `ssh` that does nothing first in PATH, because a bare machine has none."""
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_a_boot_that_hangs_is_tried_again_and_then_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "IDLE_S", 0.2)
    monkeypatch.setattr(guest, "_POLL_S", 0.05)
    with pytest.raises(HostError, match="it hung 4 times"), Guest(make_image(tmp_path), make_qemu(tmp_path)):
        pass
    pids = read_pids(tmp_path)
    assert len(pids) == 4
    assert all(map(ended, pids))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_qemu_ends_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals, status: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", MAKE_VM, str(tmp_path)], env=env) as owner:
        wait_until(lambda: read_pids(tmp_path), "the start of QEMU")
        owner.send_signal(number)
    assert owner.returncode == status
    (pid,) = read_pids(tmp_path)
    try:
        wait_until(lambda: ended(pid), "the end of QEMU")
    finally:
        if not ended(pid):
            os.kill(pid, signal.SIGKILL)
    assert number == signal.SIGKILL or not [*temporary.iterdir()]
