"""Read attributes of sysfs and procfs: one small file per value. A missing attribute is None or empty, not an error.

A function can be unbound between two reads, and its folder is then missing. Any other failure (EIO, EACCES) is an OSError for
the caller to report: a read error must never look like a value.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# ENODEV, ENXIO: the device went away with the file open. EINVAL, EAGAIN, EOPNOTSUPP: the attribute has no value now (an unused
# GID, a netdev attribute of a link that is down).
_ABSENT: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL, errno.EAGAIN, errno.EOPNOTSUPP}
)


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
