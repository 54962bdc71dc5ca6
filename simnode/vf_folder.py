"""Keep a rig's state in files that outlive the daemon: the rig, the daemon and the tests communicate by these files.

The sysfs of the simulated node is changed as a kernel would change it: a network device in another namespace is not listed.

Source: sysfs-class-net (a device is listed in its own namespace only), rdma-system(8) (exclusive).
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from simnode.child import replace_text
from simnode.links import ObservedLink

FOLDER: Final = "LADING_VF_RIG"  # in the daemon's environment: the folder's path
_AWAY: Final = ".away"  # where the hidden parts of a function are kept
_RDMA_KINDS: Final = ("infiniband", "infiniband_verbs", "infiniband_mad")


class RigFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.netns = path / "netns"
        self.pf_table = path / "pf-table.json"
        self.rdma = path / "rdma.json"  # if it exists, in exclusive mode: the namespace of each ibdev that is not in the host's
        self.clock = path / "clock"  # the seconds by which the daemon's clock is ahead
        self.no_parents = path / "no-parents"  # if it exists: the kernel (before 5.14) does not report a device's function
        self.failing = path / "failing"  # names of kernel calls that fail, one a line
        self.kill_at = path / "kill-at"  # the point, counted from 1, at which the daemon is killed
        self.points = path / "points"  # those passed since `kill_at` was written, one a line
        self.stay_dead = path / "stay-dead"  # if it exists: a daemon that was killed at a point is not started again
        self.pid = path / "pid"  # the daemon's, another one after it was killed at a point

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def mirror(host_root: Path, links: Iterable[ObservedLink]) -> None:
    """Make the `net` folder of every function as sysfs would show it for these links of the host's namespace."""
    at_home = {link.alias: link for link in links}
    for function in (host_root / "sys/bus/pci/devices").iterdir():
        folder, link = function / "net", at_home.get(function.name)
        if link is None and not folder.is_dir():
            continue  # it never had a device
        shown = sorted(folder.iterdir()) if folder.is_dir() else []
        if link is not None and shown and shown[0].name != link.name:
            shown[0].rename(folder / link.name)
        for stale in shown if link is None else shown[1:]:
            shutil.rmtree(stale)
        if link is not None:
            (folder / link.name).mkdir(parents=True, exist_ok=True)
            index = folder / link.name / "ifindex"
            if not index.exists() or index.read_text() != f"{link.index}\n":
                replace_text(index, f"{link.index}\n")


def settle_rdma(host_root: Path, folder: RigFolder) -> None:
    """Apply exclusive mode: an ibdev in another namespace is not in the host's sysfs; a dead namespace returns its own."""
    if not folder.rdma.exists():
        return
    away = {ibdev: at for ibdev, at in read_json(folder.rdma).items() if netns_inode(at["netns"]) == at["inode"]}
    for function in (host_root / "sys/bus/pci/devices").iterdir():
        hidden, at_home = function / _AWAY / "infiniband", function / "infiniband"
        ibdevs = {entry.name for folder in (hidden, at_home) if folder.is_dir() for entry in folder.iterdir()}
        if hidden.is_dir() and not ibdevs & away.keys():
            _show_rdma(host_root, function)
        elif not hidden.is_dir() and ibdevs & away.keys():
            _hide_rdma(host_root, function)
    replace_text(folder.rdma, json.dumps(away))


def netns_inode(path: str) -> int:
    """Return the inode; 0 if there is no namespace (any more)."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return 0


def _hide_rdma(host_root: Path, function: Path) -> None:
    function = function.resolve()
    (function / _AWAY).mkdir()
    for kind in _RDMA_KINDS:
        for entry in (function / kind).iterdir():
            (host_root / "sys/class" / kind / entry.name).unlink()
        (function / kind).rename(function / _AWAY / kind)


def _show_rdma(host_root: Path, function: Path) -> None:
    function = function.resolve()
    for kind in _RDMA_KINDS:
        (function / _AWAY / kind).rename(function / kind)
        for entry in (function / kind).iterdir():
            link = host_root / "sys/class" / kind / entry.name
            link.symlink_to(os.path.relpath(entry, link.parent))
    (function / _AWAY).rmdir()
