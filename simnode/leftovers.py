"""Find and remove what a private containerd can leave behind on its machine: shims, mounts, sockets, cgroups.

Everything is found by the rig's own folder, socket or cgroup name, so that nothing of the host's containerd is ever touched.
Source: proc(5) (mountinfo, net/unix, PID/stat), containerd's runtime v2 README (a shim's command line carries `-address`).
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")
_ABSENCE_CHECKS = 100
_ABSENCE_EVERY_S = 0.02


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points below the folder, deepest first."""
    lines = (_PROC / "self/mountinfo").read_text().splitlines()
    points = (Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])) for line in lines)
    return sorted((p for p in points if p.is_relative_to(folder)), key=lambda p: len(p.parts), reverse=True)


def sockets_below(folder: Path) -> list[Path]:
    """Return the Unix sockets that a process has bound below the folder."""
    return sorted({path for path in _bound_sockets().values() if path.is_relative_to(folder)})


def processes_given(path: Path) -> list[int]:
    """Return the pids started with an argument that is this path or lies below it, without this process."""
    pids = (int(entry.name) for entry in _PROC.glob("[0-9]*"))
    return sorted(pid for pid in pids if pid != os.getpid() and any(Path(a).is_relative_to(path) for a in _arguments(pid)))


def below(folder: Path) -> list[str]:
    """Return everything that still exists, as text: a test asserts that it is empty after a session."""
    return [
        *(f"mount {path}" for path in mounts_below(folder)),
        *(f"socket {path}" for path in sockets_below(folder)),
        *(f"process {pid}" for pid in processes_given(folder)),
    ]


def end_shims(address: Path) -> None:
    """End the shims that serve the containerd with this socket, their containers first, and remove the shims' own sockets.

    Containers first: a shim is their subreaper, so that without it their owner can no longer be found."""
    shims = [pid for pid in processes_given(address) if Path(_arguments(pid)[0]).name.startswith("containerd-shim")]
    sockets = [path for pid in shims for path in _sockets_of(pid)]
    for generation in (_descendants(shims), shims):
        _signal(generation, signal.SIGKILL)
        _wait_ended(generation)
    for path in sockets:
        path.unlink(missing_ok=True)


def end_processes(path: Path) -> None:
    """Send SIGTERM to every process that was started with this path as an argument, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = processes_given(path)
        _signal(pids, number)
        _wait_ended(pids)


def unmount_below(folder: Path) -> None:
    for path in mounts_below(folder):
        # lazily: a mount that a dying process still uses goes with it
        subprocess.run(["umount", "--no-mtab", "--lazy", str(path)], check=False, capture_output=True)  # noqa: S603, S607


def remove_cgroups(name: str) -> None:
    """Remove the cgroup `/<name>` and all below it from every hierarchy, v1 and v2; what is still in use stays."""
    for line in (_PROC / "self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind not in ("cgroup", "cgroup2"):
            continue
        for folder, _, _ in os.walk(Path(point) / name, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def remove_tree(folder: Path) -> None:
    """Remove a folder after unmounting what is mounted in it; never through a mount into another place."""
    unmount_below(folder)
    if not mounts_below(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _bound_sockets() -> dict[str, Path]:
    """Return inode → path of each socket with a name in the file system."""
    rows = (line.split() for line in (_PROC / "net/unix").read_text().splitlines()[1:])
    return {row[6]: Path(row[7]) for row in rows if len(row) > 7 and row[7].startswith("/")}


def _sockets_of(pid: int) -> list[Path]:
    bound = _bound_sockets()
    out = []
    for fd in _PROC.glob(f"{pid}/fd/*"):
        with contextlib.suppress(OSError):
            inode = str(fd.readlink()).removeprefix("socket:[").removesuffix("]")
            if inode in bound:
                out.append(bound[inode])
    return out


def _arguments(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it ended while this read it
        return [""]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pids: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()  # the name before it may contain spaces
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    out: list[int] = []
    ask = list(pids)
    while ask:
        ask = [child for pid in ask for child in children.get(pid, [])]
        out += ask
    return out


def _wait_ended(pids: list[int]) -> None:
    """Wait until they have ended, or are zombies that another process has yet to reap."""
    for _ in range(_ABSENCE_CHECKS):
        if not any(_alive(pid) for pid in pids):
            return
        time.sleep(_ABSENCE_EVERY_S)


def _alive(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
