"""Check that a connected process is in a cgroup of the socket's pod.

Each socket is mounted into one container only. A process of the host, or of a pod that mounts the host's folders, could reach
the socket too. The kernel keeps the peer's process ID from connect(2). With SO_PEERPIDFD (Linux 6.5), the check also detects
that the peer ended and another process got its ID.

Tests: tests/unit/shares/test_server.py
"""

import errno
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
_REAPED: Final = (errno.EINVAL, errno.ESRCH)  # a parent has waited for the peer: Linux 6.5 and later (pidfd_prepare)


def find_stranger(connection: socket.socket, pod: PodUid, host_root: Path) -> str:
    """Return a description of the connected process if it is not in the pod, such as "process 7 of no pod"; else empty."""
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


def open_peer(connection: socket.socket) -> int:
    """Return a pidfd of the process that connected. Raise OSError."""
    return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)


def _has_ended(connection: socket.socket) -> bool:
    try:
        pidfd = open_peer(connection)
    except OSError as e:
        return e.errno in _REAPED  # kernels before 6.5 do not have SO_PEERPIDFD
    poll = select.poll()  # select.select takes no descriptor from 1,024 on
    try:
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(pidfd)
