"""Run the MPS daemon of a card under a real systemd, started from the sandbox of lading-hooks."""

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from simnode.mps import client, install_fake_mps
from tests.fakes.private_systemd import ROOT, PrivateSystemd, private_folder
from tests.node.site import eventually
from tests.unit.hooks.inventories import uuid

pytestmark = pytest.mark.node

HOOKS: Final = "lading-hooks.service"
CARD: Final = uuid(0)
OTHER: Final = uuid(1)
PID_FILE: Final = "nvidia-cuda-mps-control.pid"
SERVICE: Final = f"lading-mps-{CARD}.service"


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shm_dir = Path("/dev/shm", folder.name)
        command = install_fake_mps(folder / "bin")
        run = f"exec {sys.executable} -P -m tests.node.mps_trial $$(cat {folder}/what) {CARD} {command} {self.shm_dir}"
        lines = ["[Service]", "Type=oneshot", "Restart=no", "PrivateTmp=no", f"Environment=PYTHONPATH={ROOT}"]
        lines += ["ExecStart=", f"ExecStart=/bin/sh -c '{run}'", ""]
        self.systemd = PrivateSystemd(folder, drop_ins={HOOKS: "\n".join(lines)})

    def act(self, what: str) -> None:
        (self.folder / "what").write_text(what)
        self.systemd.run("sh", "-c", f"systemctl start {HOOKS} || {{ journalctl -u {HOOKS} -n 30 -o cat; false; }}")

    @property
    def pid(self) -> str:
        """Return the daemon's process ID in its own namespace."""
        return self.systemd.show(SERVICE, "MainPID")

    @property
    def pipe(self) -> Path:
        return self.systemd.root / "run/lading/mps" / CARD / "pipe"


@pytest.fixture
def site() -> Iterator[Site]:
    with private_folder() as folder:
        made = Site(folder)
        with made.systemd:
            yield made
    shutil.rmtree(made.shm_dir, ignore_errors=True)


def test_the_daemon_is_a_service_that_outlives_lading_hooks(site: Site) -> None:
    site.act("start")
    assert site.systemd.show(HOOKS, "ActiveState") == "inactive"  # with everything in its cgroup
    assert site.systemd.show(SERVICE, "ActiveState") == "active"
    assert site.systemd.show(SERVICE, "OOMScoreAdjust") == "-999"
    environment = site.systemd.run("cat", f"/proc/{site.pid}/environ")
    assert f"CUDA_VISIBLE_DEVICES={CARD}\0" in environment
    site.act("ask")

    # The containers of the card have the daemon's /dev/shm as theirs.
    (site.shm_dir / CARD / "file").touch()
    assert site.systemd.run("nsenter", "--target", site.pid, "--mount", "ls", "/dev/shm").split() == ["file"]

    # The daemon's process is no other card's daemon, even where a pid file says so.
    other = site.pipe.parents[1] / OTHER / "pipe"
    other.mkdir(parents=True)
    shutil.copy(site.pipe / PID_FILE, other)
    site.act("other")
    shutil.rmtree(other.parent)

    # None of what lading-hooks may not do keeps a server from starting.
    status = site.systemd.status_of(SERVICE)
    assert status["NoNewPrivs"] == status["Seccomp"] == "0"

    with client(site.pipe) as program:
        assert program.answer()[2:] == ["30.0", "1044M"]
    site.act("stop")
    assert site.systemd.show(SERVICE, "LoadState") == "not-found"
    assert not site.pipe.exists()
    assert not (site.shm_dir / CARD).exists()
    site.act("start")  # the name is free again
    site.act("stop")


def test_a_daemon_that_dies_takes_its_server_along(site: Site) -> None:
    site.act("start")
    with client(site.pipe) as program:
        server = program.answer()[1]
    assert site.systemd.run("cat", f"/proc/{server}/comm")
    site.systemd.run("kill", f"-{signal.SIGKILL}", site.pid)
    eventually(lambda: site.systemd.run("sh", "-c", f"! test -e /proc/{server} && echo gone", check=False))
    site.act("start")
    site.act("ask")
    site.act("stop")
