"""Check the node's ledger, and its folder and disk.

Take the version of the ledger's schema, and a reading of the folder. Return verdicts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor.config import can_be_changed
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.writable import LEAST_FREE
from lading.checks.model import Finding, failed, ok, skipped, warning
from lading.sockets import Access

LITTLE_FREE: Final = 100 << 20
_LITTLE_INODES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSeen:
    path: Path
    schema: int | None = None  # version of the schema; None: there is no ledger yet


def decide_ledger(seen: LedgerSeen) -> Iterator[Finding]:
    if seen.schema is None:
        yield skipped(f"there is no {seen.path} yet: lading-hooks creates it when it first starts")
    elif seen.schema < len(MIGRATIONS):
        what = f"{seen.path} has schema {seen.schema} of an older version; this version has {len(MIGRATIONS)}"
        yield warning(what, mend="systemctl restart lading-hooks (it brings the ledger up to date)")
    else:
        yield ok(f"{seen.path} is sound, schema {seen.schema}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSeen:
    folder: Path
    there: bool = False
    access: Access | None = None
    free: int = 0  # free bytes
    free_inodes: int | None = None  # free inodes; None: the file system does not limit them
    read_only: bool = False


def decide_disk(seen: DiskSeen) -> Iterator[Finding]:
    room = f'make room: du -xhd2 "$(findmnt -no TARGET -T {seen.folder})" | sort -h | tail; '
    where = f"df -h {seen.folder}; df -i {seen.folder}; findmnt -T {seen.folder}"
    if not seen.there or seen.access is None:
        yield skipped(f"there is no {seen.folder} yet: lading-hooks creates it when it first starts")
        return
    if can_be_changed(seen.access):
        whose = f"belongs to uid {seen.access.uid} and has mode {seen.access.mode:04o}"
        what = f"{seen.folder} {whose}: other users could change the ledger"
        yield failed(what, mend=f"chown root {seen.folder}; chmod 0700 {seen.folder}")
    mib = seen.free >> 20
    if seen.read_only:
        remount = f'mount -o remount,rw "$(findmnt -no TARGET -T {seen.folder})"'
        what = f"{seen.folder} is on a file system that is mounted read-only"
        yield failed(what, mend=f"dmesg | tail says whether its disk failed; else {remount}; {where}")
    elif seen.free < LEAST_FREE or seen.free_inodes == 0:
        yield failed(f"{seen.folder} has {mib} MiB and {seen.free_inodes} inodes left", mend=room + where)
    elif seen.free < LITTLE_FREE or (seen.free_inodes is not None and seen.free_inodes < _LITTLE_INODES):
        yield warning(f"{seen.folder} has {mib} MiB and {seen.free_inodes} inodes left", mend=room + where)
    else:
        yield ok(f"{seen.folder} can be written, {mib} MiB are free")
