"""Run a real systemd as PID 1 of its own namespaces, with Lading's units and the real journald.

In the given folder, `etc` is /etc/lading of this system, and `containerd` is its /run/containerd. The units of `systemd/` run
the commands of this checkout, with a drop-in only where a unit would hide Python from its command. /run, /opt, /var/lib, /etc
and the machine's unit folders are hidden by other mounts, so that the host's files are neither read nor changed. The `with`
block begins with a booted system, and ends by killing it. Source: systemd(1); the container interface of systemd.io.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from simnode.child import Child
from simnode.patience import tail
from tests.fakes.counting_runtime import CountingRuntime
from tests.fakes.needs import need
from tests.started import short_folder

ROOT: Final = Path(__file__).parents[2]
UNITS: Final = ROOT / "systemd"
_SYSTEM: Final = Path("/usr/lib/systemd/system")
_OF_THE_MACHINE: Final = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
_ETC: Final = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf")
_HIDDEN: Final = {"ProtectHome": ("/root", "/home", "/run/user"), "PrivateTmp": ("/tmp", "/var/tmp")}
_COUNTER: Final = itertools.count()
_TARGETS: Final = ("sysinit", "basic", "sockets", "multi-user", "shutdown", "umount", "final", "emergency", "rescue")

# The cgroup must be made before its namespace: of two systems with one root, each finds processes of the other in its units.
_MOUNT_CGROUPS: Final = """
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
"""
_JOIN_CGROUP: Final = f"""
set -e
{_MOUNT_CGROUPS}
mkdir /sys/fs/cgroup/$1
echo 0 >/sys/fs/cgroup/$1/cgroup.procs
shift
exec unshare --cgroup -- "$@"
"""
_REMOVE_CGROUP: Final = f"""
set -e
{_MOUNT_CGROUPS}
cd /sys/fs/cgroup
for attempt in $(seq 100); do
    find "$1" -depth -type d -exec rmdir {{}} \\; 2>/dev/null || true
    if [ ! -d "$1" ]; then exit 0; fi
    sleep 0.1
done
echo "cgroup $1 still has processes" >&2
exit 1
"""
_BOOT: Final = f"""
set -e
folder=$1
mount -t proc proc /proc
{_MOUNT_CGROUPS}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/containerd && mount --bind "$folder/containerd" /run/containerd
for covered in /opt /var/lib /usr/local/sbin /usr/lib/systemd/system /usr/lib/systemd/system-generators; do
    mount -t tmpfs tmpfs $covered
done
mount --bind "$folder/root-etc" /etc
if [ -n "$2" ]; then mkdir -p /opt/lading && mount --bind "$2" /opt/lading; fi
cp "$folder/units"/* /usr/lib/systemd/system/
exec env -i container=lading PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
"""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make the folder of a private systemd. Skip the test on a machine that cannot run one."""
    without = missing()
    need(not without, without)
    with short_folder() as folder:
        yield folder


@contextmanager
def beside_runtime(systemd: "PrivateSystemd") -> Iterator["PrivateSystemd"]:
    """Start a systemd, and a runtime that counts its calls at the path of containerd's socket."""
    with CountingRuntime(systemd.containerd / "containerd.sock") as runtime:
        runtime.path.chmod(0o660)  # the mode of containerd's socket
        with systemd:
            yield systemd


def missing() -> str:
    """Return why this machine cannot run it, or an empty text."""
    if os.geteuid() != 0:
        return "root"
    if not Path("/lib/systemd/systemd").exists() or shutil.which("systemctl") is None:
        return "systemd (apt-get install systemd)"
    trial = [
        "unshare",
        "--mount",
        "--cgroup",
        "--propagation",
        "private",
        "mount",
        "-t",
        "cgroup2",
        "cgroup2",
        "/sys/fs/cgroup",
    ]
    return "a kernel with cgroup v2" if subprocess.run(trial, check=False, capture_output=True).returncode else ""


def uncover(*paths: Path) -> str:
    """Return the lines of a unit without which it would hide these paths from its service."""
    hiding = [setting for setting, folders in _HIDDEN.items() if any(path.is_relative_to(f) for path in paths for f in folders)]
    return "".join(f"[Service]\n{setting}=no\n" for setting in hiding)


class PrivateSystemd:
    """Run systemd in namespaces. `drop_ins`: more lines for a unit, by unit. Not `installed`: a machine without Lading."""

    def __init__(
        self, folder: Path, *, wanted: Iterable[str] = (), drop_ins: Mapping[str, str] | None = None, installed: bool = True
    ) -> None:
        self.folder = folder
        self.log = folder / "systemd.log"
        self.etc = folder / "root-etc" / "lading"
        self.units = folder / "root-etc" / "systemd/system"  # more units, and drop-ins
        self.containerd = folder / "containerd"
        self._wanted = tuple(wanted)
        self._drop_ins = dict(drop_ins or {})
        self._installed = installed
        self._cgroup = f"lading-test-{os.getpid()}-{next(_COUNTER)}"
        join = ["sh", "-c", _JOIN_CGROUP, "join", self._cgroup, *self._boot()]
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--propagation", "private"]
        self._unshare = Child(["unshare", *spaces, "--fork", "--kill-child=KILL", *join], log=self.log)
        self._pid = 0
        for made in (self.etc, self.units, self.containerd, folder / "units"):
            made.mkdir(parents=True)

    def _boot(self) -> list[str]:
        """Return the command that makes the mounts of the system, and then becomes systemd."""
        return ["sh", "-c", _BOOT, "boot", str(self.folder), str(Path(sys.executable).parents[1]) if self._installed else ""]

    def __enter__(self) -> Self:
        self._write_etc()
        self._write_units(_SYSTEM)
        self._unshare.start()
        try:
            self._unshare.wait_until(self._booted, "a booted system")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._unshare.kill()
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _REMOVE_CGROUP, "remove", self._cgroup], check=True
        )

    @property
    def root(self) -> Path:
        """Return the path of its file system from outside. Sockets below it can be connected to."""
        return Path(f"/proc/{self._pid}/root")

    def run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(
            ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--", *argv],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{tail(self.log)}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def status_of(self, unit: str) -> dict[str, str]:
        """Return /proc/PID/status of the unit's main process."""
        status = self.run("cat", f"/proc/{self.show(unit, 'MainPID')}/status")
        return {key: value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}

    def _write_etc(self) -> None:
        etc = self.etc.parent
        for name in _ETC:
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), etc)
        (etc / "machine-id").write_text("5f0d2c6100004000800000000000abcd\n")

    def _write_units(self, system: Path) -> None:
        units = self.folder / "units"
        for name in _OF_THE_MACHINE:
            shutil.copy(system / name, units)
        for path in UNITS.glob("lading-*") if self._installed else ():
            shutil.copy(path, units)
        for target in _TARGETS:
            (units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        wants = " ".join((*_OF_THE_MACHINE, *self._wanted))
        (units / "multi-user.target").write_text(f"[Unit]\nDefaultDependencies=no\nWants={wants}\n")
        for path in UNITS.glob("lading-*.service"):
            more = self._drop_ins.get(path.name, "") + uncover(ROOT, Path(sys.executable), Path(sys.executable).resolve())
            drop_in = self.units / f"{path.name}.d" / "50-test.conf"
            drop_in.parent.mkdir(parents=True)
            drop_in.write_text(more)

    def _booted(self) -> bool:
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        if not children:
            return False
        self._pid = int(children[0])
        state = self.run("systemctl", "is-system-running", check=False).strip()
        return state in {"running", "degraded"}
