"""Check in advance whether the next grant can be recorded: the last write, the folder, the free space on its disk.

It takes the ledger's path and how its last write went. It returns what is wrong, or nothing.
"""

import os
from pathlib import Path
from typing import Final

# Below it SQLite may fail to grow its log.
LEAST_FREE: Final = 1 << 20


def find_ledger_problem(path: Path, last_write: str) -> str:
    if last_write:
        return last_write
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} cannot be written"
    found = os.statvfs(path.parent)
    free = found.f_bavail * found.f_frsize
    return f"{path.parent} has {free} bytes left" if free < LEAST_FREE else ""
