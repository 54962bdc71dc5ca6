"""Tell whether a process that connected is in a cgroup of the pod that a socket is for.

The socket is mounted into one container only; but a process of the host, or of a pod that mounts the host's folders, could
reach it too. The kernel keeps the peer's process ID of connect(2). Where it has SO_PEERPIDFD (Linux 6.5), a process ID that
another process got meanwhile is noticed.
"""

import os
import select
import socket
from pathlib import Path
from typing import Final

from lading.cgroups import parse_cgroup, read_cgroups
from lading.errors import HostError
from lading.sockets import peer_credentials
from lading.vocabulary import PodUid

_SO_PEERPIDFD: Final = 77  # asm-generic/socket.h; not in Python's socket


def find_stranger(connection: socket.socket, pod: PodUid, host_root: Path) -> str:
    """Return who connected, in words, if that is no process of the pod; empty if it is one."""
    pid = peer_credentials(connection).pid
    try:
        cgroup = read_cgroups(host_root, [pid]).get(pid, "")
    except HostError as e:
        return str(e)
    if _has_ended(connection):
        return f"process {pid}, which ended"
    process = parse_cgroup(cgroup)
    if process is None:
        return f"process {pid} of no pod"
    return "" if process.pod == pod else f"process {pid} of pod {process.pod}"


def _has_ended(connection: socket.socket) -> bool:
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return False  # an older kernel
    try:
        ended, _, _ = select.select([pidfd], [], [], 0)
        return bool(ended)
    finally:
        os.close(pidfd)
