"""Read attributes of sysfs and procfs: one small file per value. A missing attribute is None or empty, not an error.

A function can be unbound between two reads, and its folder is then missing. Any other failure (EIO, EACCES) is an OSError for
the caller to report: a read error must never look like a value.

`read_path` and `read_socket` find the place of a PCI function; the caller compares places to find devices that share a switch.
What sysfs does not show of it (no such function, a NUMA node without processors) is absent, never a guess.

Source: Documentation/ABI/testing/sysfs-bus-pci (the real path of a device is its place in the tree), sysfs-devices-system-cpu;
random(4), /proc/sys/kernel/random/boot_id.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lading.errors import HostError

# ENODEV, ENXIO: the device went away with the file open. EINVAL, EAGAIN, EOPNOTSUPP: the attribute has no value now (an unused
# GID, a netdev attribute of a link that is down).
_ABSENT: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EAGAIN, errno.EOPNOTSUPP}
)
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A host bridge's folder, `pci<domain>:<bus>`. It need not be the first: on some machines ACPI's or the platform's is above it.
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_attribute(path: Path) -> str | None:
    """Return the value without the line end."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as e:
        if e.errno in _ABSENT:
            return None
        raise


def read_int(path: Path) -> int | None:
    text = read_attribute(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def read_names(folder: Path) -> tuple[str, ...]:
    """Return the entries of a folder, sorted."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as e:
        if e.errno in _ABSENT:
            return ()
        raise


@contextlib.contextmanager
def pinned(folder: Path) -> Iterator[Path]:
    """Yield a path that refers to this folder even if the folder is replaced. Otherwise the kernel could give the number to
    another device between two reads, and the attributes would be of two devices. A missing folder keeps its path, and has no
    attributes."""
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno not in _ABSENT:
            raise
        yield folder
        return
    try:
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def read_link_name(path: Path) -> str:
    """Return the last part of a link's real target: the driver's name, a function's address. Empty if it has no target."""
    try:
        return path.resolve(strict=True).name if path.is_symlink() else ""
    except OSError as e:
        if e.errno in _ABSENT:
            return ""
        raise


def read_real_path(path: Path) -> tuple[str, ...]:
    """Return the parts of a link's real target; none if it has no target."""
    try:
        return path.resolve(strict=True).parts
    except OSError as e:
        if e.errno in _ABSENT:
            return ()
        raise


def read_numa(host_root: Path, bdf: str) -> int | None:
    """Return the NUMA node of a PCI function. The kernel's -1 is None: unknown, never node 0."""
    node = read_int(host_root / "sys/bus/pci/devices" / bdf / "numa_node")
    return node if node is not None and node >= 0 else None


def read_device_number(path: Path) -> tuple[int, int] | None:
    """Return major and minor of a `dev` attribute."""
    major, _, minor = (read_attribute(path) or "").partition(":")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def read_boot_id(host_root: Path) -> str:
    """Return the kernel's boot id: a restart of a daemon keeps it, a reboot changes it. Raise HostError."""
    path = host_root / "proc/sys/kernel/random/boot_id"
    try:
        text = path.read_bytes().decode("ascii", "replace").strip()
    except OSError as e:
        raise HostError(f"cannot read {path}: {e.strerror}") from e
    if not _BOOT_ID.fullmatch(text):
        raise HostError(f"cannot read {path}: {text[:60]!r} is no boot id")
    return text


def read_path(host_root: Path, bdf: str) -> tuple[str, ...]:
    """Return the path from the host bridge (`pci0000:17`) through each bridge down, without the function; empty if it does not
    exist."""
    parts = read_real_path(host_root / "sys/bus/pci/devices" / bdf)
    first = next((place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[first:-1]


def read_socket(host_root: Path, numa: int | None) -> int | None:
    """Return the physical package of the first processor of this NUMA node."""
    if numa is None:
        return None
    processors = read_attribute(host_root / f"sys/devices/system/node/node{numa}/cpulist") or ""
    first = re.match(r"[0-9]+", processors)
    if first is None:
        return None
    package = read_int(host_root / f"sys/devices/system/cpu/cpu{first[0]}/topology/physical_package_id")
    return package if package is not None and package >= 0 else None
