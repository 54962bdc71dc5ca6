"""Tell whether the process IDs that a driver reports are those of the host's /proc.

A driver reports IDs to a process in the initial pid namespace as the host counts them. In another namespace (a node that is a
container itself) an ID is another process's, or none's; and which of the host's processes a pod has is not to be seen there.
Source: Linux, include/linux/proc_ns.h (PROC_PID_INIT_INO), pid_namespaces(7).
"""

from pathlib import Path
from typing import Final

_INITIAL: Final = "pid:[4026531836]"


def sees_host_processes(host_root: Path) -> bool:
    """Return whether this process is in the initial pid namespace, by the /proc below the host root."""
    try:
        return str((host_root / "proc/self/ns/pid").readlink()) == _INITIAL
    except OSError:
        return False
