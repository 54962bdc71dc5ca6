"""Read the grants of shares that lading-hooks writes for this server: a folder for each container, with `grant.json`.

Only root writes there. A file that is unreadable or invalid counts as no grant: its container gets no turn.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lading.sharegrant import FILE, ShareGrant, parse_grant

MAX_BYTES: Final = 64 << 10


class Version(NamedTuple):
    """Identify one state of a file: a changed or replaced file has another version."""

    inode: int
    size: int
    changed_ns: int


def list_grants(folder: Path) -> dict[str, Version]:
    """Return the version of each container's grant, by the name of its folder. Raise OSError if `folder` cannot be read."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = os.stat(os.path.join(entry.path, FILE), follow_symlinks=False)  # noqa: PTH116, PTH118 -- each 100 ms
            except OSError:
                continue  # the file is being written or removed
            found[entry.name] = Version(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def read_grant(path: Path) -> ShareGrant | str:
    """Return the grant in this file, or an error message."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        return f"cannot read {path}: {e.strerror}"
    if len(text) > MAX_BYTES:
        return f"cannot use {path}: it has more than {MAX_BYTES} bytes"
    try:
        grant = parse_grant(text)
    except msgspec.MsgspecError as e:
        return f"cannot use {path}: {e}"
    if len({gpu.uuid for gpu in grant.gpus}) < len(grant.gpus):
        return f"cannot use {path}: it names a card twice"
    for gpu in grant.gpus:
        if gpu.limit_percent < gpu.request_percent:
            return f"cannot use {path}: the limit of {gpu.uuid} is {gpu.limit_percent} %, below its request"
        if gpu.memory_mib > gpu.total_mib:
            return f"cannot use {path}: {gpu.uuid} has {gpu.total_mib} MiB, less than memory_mib"
    return grant
