"""Check a character device node below the host root before it is used.

Every part of the path is opened relative to the one before, with O_PATH | O_NOFOLLOW: a link anywhere below the host root, a
file, a FIFO or a block device where a node is expected is an error, and so is another device number than the kernel's own
(sysfs, /proc/devices). O_PATH opens no driver, so a FIFO does not block and a GPU does not wake up.

The check is valid for this moment only. The runtime opens the path again when it creates the container; /dev belongs to root.

Source: open(2), O_PATH and O_NOFOLLOW; hostile cases: CVE-2024-0132, CVE-2025-23267.
"""

import os
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from hooks.model.inventory import CharDevice
from lading.errors import HostError


class Cause(StrEnum):
    MISSING = "missing"
    LINK = "link"  # the node, or a folder on the way to it, is a symbolic link
    NOT_A_FOLDER = "not-a-folder"
    NOT_A_CHAR_DEVICE = "not-a-char-device"
    WRONG_NUMBER = "wrong-number"
    NO_DRIVER = "no-driver"  # the kernel lists no driver with which its number could be compared
    PATH = "path"  # not absolute, or with empty, "." or ".." parts
    UNREADABLE = "unreadable"


class DeviceNodeError(HostError):
    def __init__(self, cause: Cause, path: str, message: str) -> None:
        super().__init__(f"cannot use {path}: {message}")
        self.cause = cause
        self.path = path


def read_char_device(host_root: Path, path: str, *, major: int | None, minor: int | None) -> CharDevice:
    """Return the node at `path`, as a container names it. A number that is None is not compared. Raise DeviceNodeError."""
    parts = path.split("/")
    if parts[0] != "" or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
        raise DeviceNodeError(Cause.PATH, path, "not a plain absolute path")
    status = _stat_below(host_root, path, parts[1:])
    if not stat.S_ISCHR(status.st_mode):
        raise DeviceNodeError(Cause.NOT_A_CHAR_DEVICE, path, f"it is {_kind(status.st_mode)}, not a character device")
    result = os.major(status.st_rdev), os.minor(status.st_rdev)
    expected = result[0] if major is None else major, result[1] if minor is None else minor
    if result != expected:
        message = f"it is device {result[0]}:{result[1]}, the kernel says {expected[0]}:{expected[1]}"
        raise DeviceNodeError(Cause.WRONG_NUMBER, path, message)
    return CharDevice(path=path, host_path=str(host_root / path[1:]), major=result[0], minor=result[1])


def read_driver_node(root: Path, path: str, *, majors: Mapping[str, int], driver: str, minor: int | None) -> CharDevice:
    """Return a node of a driver, whose major is in /proc/devices. Raise DeviceNodeError."""
    major = majors.get(driver)
    if major is None:
        raise DeviceNodeError(Cause.NO_DRIVER, path, f"/proc/devices lists no driver {driver}")
    return read_char_device(root, path, major=major, minor=minor)


def _stat_below(host_root: Path, path: str, parts: list[str]) -> os.stat_result:
    """Stat the path without following a link. The host root itself may be a link: an operator configured it."""
    at = -1
    try:
        at = os.open(host_root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for depth, part in enumerate(parts):
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
            status = os.fstat(at)
            if stat.S_ISLNK(status.st_mode):
                raise DeviceNodeError(Cause.LINK, path, f"/{'/'.join(parts[: depth + 1])} is a symbolic link")
            if depth < len(parts) - 1 and not stat.S_ISDIR(status.st_mode):
                raise DeviceNodeError(Cause.NOT_A_FOLDER, path, f"/{'/'.join(parts[: depth + 1])} is no folder")
    except FileNotFoundError as e:
        raise DeviceNodeError(Cause.MISSING, path, "there is no such node") from e
    except OSError as e:
        raise DeviceNodeError(Cause.UNREADABLE, path, e.strerror or str(e)) from e
    else:
        return status
    finally:
        if at >= 0:
            os.close(at)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFBLK: "a block device", stat.S_IFIFO: "a FIFO"}
    return kinds.get(stat.S_IFMT(mode), "a socket")
