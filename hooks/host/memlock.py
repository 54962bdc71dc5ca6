"""Check whether containers can register memory for RDMA: they have their runtime's limit of locked memory, and CRI has no field
for it.

Source: getrlimit(2) RLIMIT_MEMLOCK; containers start with the limits of their runtime.
"""

import re
import socket
from pathlib import Path
from typing import Final

from lading.sockets import peer_credentials

# ibv_reg_mr pins registered memory, and programs register gigabytes: a limit of locked memory is rarely enough.
_ENOUGH: Final = 64 << 30
_LINE: Final = re.compile(r"^Max locked memory\s+(\d+|unlimited)\s", re.MULTILINE)  # the soft limit
# Local, and answered by the kernel; a runtime whose backlog is full must not block the loop.
_CONNECT_S: Final = 0.5


def memlock_warning(host_root: Path, runtime: Path) -> str:
    """Return the change that the operator should make, or an empty string. It is empty too if the runtime does not answer,
    because other checks report that."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(_CONNECT_S)
            connection.connect(str(runtime))
            pid = peer_credentials(connection).pid
        limits = (host_root / "proc" / str(pid) / "limits").read_text()
    except OSError:
        return ""
    match = _LINE.search(limits)
    if match is None or match[1] == "unlimited" or int(match[1]) >= _ENOUGH:
        return ""
    return (
        f"the container runtime (pid {pid}) may lock {int(match[1]) >> 10} KiB of memory, and so may its containers: RDMA will "
        "fail to register memory; set LimitMEMLOCK=infinity in its unit, or rdma_ipc_lock = true"
    )
