"""Read the kernel's boot id, which identifies the boot in which a grant was made. A restart of a daemon keeps it, a reboot
changes it.

Source: random(4), /proc/sys/kernel/random/boot_id.
"""

import re
from pathlib import Path

from lading.errors import HostError

_SHAPE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_boot_id(host_root: Path) -> str:
    path = host_root / "proc/sys/kernel/random/boot_id"
    try:
        text = path.read_bytes().decode("ascii", "replace").strip()
    except OSError as e:
        raise HostError(f"cannot read {path}: {e.strerror}") from e
    if not _SHAPE.fullmatch(text):
        raise HostError(f"cannot read {path}: {text[:60]!r} is no boot id")
    return text
