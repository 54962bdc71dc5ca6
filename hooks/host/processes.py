"""Check whether the process IDs that a driver reports are those of the host's /proc, whether such a process is ending, and
which file it has mapped.

A driver reports the host's IDs to a process in the initial pid namespace. In another namespace (a node that is a container
itself) an ID may belong to another process, or to no process. The host's processes of a pod are not visible there.
Source: Linux, include/linux/proc_ns.h (PROC_PID_INIT_INO), include/linux/sched.h (PF_EXITING), pid_namespaces(7), proc(5).
"""

from pathlib import Path
from typing import Final

_INITIAL: Final = "pid:[4026531836]"
_EXITING: Final = 0x4  # PF_EXITING
_LARGEST_MAPS: Final = 4 << 20  # bytes; a program with PyTorch has some 100 KB
_LONGEST_PATH: Final = 200
_FLAGS: Final = 6  # position in /proc/<pid>/task/<tid>/stat, behind the name in brackets


def sees_host_processes(host_root: Path) -> bool:
    """Return whether this process is in the initial pid namespace, by the /proc below the host root."""
    try:
        return str((host_root / "proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return False


def is_ending(host_root: Path, pid: int) -> bool:
    """Return whether the process has ended, or all of its threads are ending; its first thread alone may end before the others.
    An ending process closes its files one by one, and a driver may list it for seconds after its sockets are closed."""
    for stat in (host_root / "proc" / str(pid) / "task").glob("*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if not int(fields[_FLAGS]) & _EXITING:
                return False
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
    return True


def find_mapped(host_root: Path, pid: int, name: str) -> str:
    """Return the path of the first mapped file of the process whose name begins so, as the process sees the path, or the first
    _LONGEST_PATH characters of it. Return an empty text if there is no such file or no such process."""
    try:
        with (host_root / "proc" / str(pid) / "maps").open("rb") as file:
            lines = file.read(_LARGEST_MAPS).decode(errors="replace").splitlines()
    except OSError:
        return ""
    paths = (fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)
    return next((path for path in paths if path.rpartition("/")[2].startswith(name)), "")[:_LONGEST_PATH]
