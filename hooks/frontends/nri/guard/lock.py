"""Find out whether a guard is connected to the runtime.

While the runtime calls a guard that connected by itself, the guard holds a lock, which guards share. The kernel frees the lock
when the process ends.

Tests: tests/unit/hooks/frontends/nri/guard/test_service.py
"""

import fcntl
import os
from pathlib import Path
from typing import Final

_NONE: Final = (
    "no guard is connected to the runtime: if lading-hooks dies while it is asked, a container starts without devices"
)


def find_guard(lock: Path) -> str:
    """Return an error if no guard is connected; empty if one is. `lock`: the guards' lock file."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return _NONE
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)
    return _NONE
