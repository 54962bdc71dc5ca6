"""Check the node's ledger, and its folder and disk.

Take the version of the ledger's schema, and a reading of the folder. Return verdicts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor.config import can_be_changed
from hooks.ledger.file import LEAST_FREE
from hooks.ledger.schema import MIGRATIONS
from lading.checks.model import Finding, failed, ok, skipped, warning
from lading.sockets import Access

LITTLE_FREE: Final = 100 << 20
_LITTLE_INODES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    path: Path
    schema: int | None = None  # version of the schema; None: there is no ledger yet


def decide_ledger(reading: LedgerReading) -> Iterator[Finding]:
    if reading.schema is None:
        yield skipped(f"there is no {reading.path} yet: lading-hooks creates it when it first starts")
    elif reading.schema < len(MIGRATIONS):
        what = f"{reading.path} has schema {reading.schema} of an older version; this version has {len(MIGRATIONS)}"
        yield warning(what, mend="systemctl restart lading-hooks (it brings the ledger up to date)")
    else:
        yield ok(f"{reading.path} is sound, schema {reading.schema}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReading:
    folder: Path
    there: bool = False
    access: Access | None = None
    free: int = 0  # free bytes
    free_inodes: int | None = None  # free inodes; None: the file system does not limit them
    read_only: bool = False


def decide_disk(reading: DiskReading) -> Iterator[Finding]:
    room = f'make room: du -xhd2 "$(findmnt -no TARGET -T {reading.folder})" | sort -h | tail; '
    where = f"df -h {reading.folder}; df -i {reading.folder}; findmnt -T {reading.folder}"
    if not reading.there or reading.access is None:
        yield skipped(f"there is no {reading.folder} yet: lading-hooks creates it when it first starts")
        return
    if can_be_changed(reading.access):
        whose = f"belongs to uid {reading.access.uid} and has mode {reading.access.mode:04o}"
        what = f"{reading.folder} {whose}: other users could change the ledger"
        yield failed(what, mend=f"chown root {reading.folder}; chmod 0700 {reading.folder}")
    mib = reading.free >> 20
    if reading.read_only:
        remount = f'mount -o remount,rw "$(findmnt -no TARGET -T {reading.folder})"'
        what = f"{reading.folder} is on a file system that is mounted read-only"
        yield failed(what, mend=f"dmesg | tail says whether its disk failed; else {remount}; {where}")
    elif reading.free < LEAST_FREE or reading.free_inodes == 0:
        yield failed(f"{reading.folder} has {mib} MiB and {reading.free_inodes} inodes left", mend=room + where)
    elif reading.free < LITTLE_FREE or (reading.free_inodes is not None and reading.free_inodes < _LITTLE_INODES):
        yield warning(f"{reading.folder} has {mib} MiB and {reading.free_inodes} inodes left", mend=room + where)
    else:
        yield ok(f"{reading.folder} can be written, {mib} MiB are free")
