"""Check in advance whether the next grant can be recorded: the last write, the folder, the free space on its disk.

`find_ledger_problem` takes the ledger's path and the failure of its last write. It returns the problem, or an empty string.
"""

import os
from pathlib import Path
from typing import Final

# SQLite may fail to grow its log if fewer octets are free.
LEAST_FREE: Final = 1 << 20


def find_ledger_problem(path: Path, last_write: str) -> str:
    if last_write:
        return last_write
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} cannot be written"
    result = os.statvfs(path.parent)
    free = result.f_bavail * result.f_frsize
    return f"{path.parent} has {free} bytes left" if free < LEAST_FREE else ""
