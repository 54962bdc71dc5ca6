"""Ask the share server for the current use of shares: the server answers with one JSON document, and closes the socket.

Tests: tests/unit/shares/test_status.py
"""

import socket
from pathlib import Path
from typing import Final

import msgspec

from lading.errors import HostError

SOCKET_PATH: Final = "/run/lading/shares.sock"
_MAX_BYTES: Final = 16 << 20


class ShareUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Represent the use of one card by one container."""

    namespace: str
    pod: str
    pod_uid: str = msgspec.field(name="podUID")
    container: str
    gpu: str
    request_percent: int
    limit_percent: int
    held_s: float  # seconds of the card's time, since the container's grant or the server's start
    waited_s: float = 0.0  # seconds since then for which its launches waited for a turn
    has_turn: bool
    waiters: int  # other containers that want the card
    turns: bool = True  # False: an MPS server runs kernels at any time
    memory_used_mib: int = msgspec.field(name="memoryUsedMiB")
    memory_limit_mib: int = msgspec.field(name="memoryLimitMiB")
    context_mib: int = msgspec.field(name="contextMiB", default=0)  # memory that a context of the card takes; 0: not known yet
    processes: int
    process_ids: tuple[int, ...] | None = msgspec.field(name="processIDs", default=None)  # host's ids; None: an older server


def ask(path: Path) -> list[ShareUse]:
    """Return the use of all shares, from the share server at this socket. Raises HostError."""
    text = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5.0)
            connection.connect(str(path))
            while (data := connection.recv(1 << 16)) and len(text) < _MAX_BYTES:
                text += data
        return msgspec.json.decode(text, type=list[ShareUse])
    except OSError as e:
        raise HostError(f"cannot ask {path}: {e.strerror or e}", hint="systemctl status lading-shares") from e
    except msgspec.MsgspecError as e:
        raise HostError(f"cannot read the answer of {path}: {e}") from e
