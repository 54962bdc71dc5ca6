"""Label what containers of this node use, where SELinux is enabled: libraries, folders and sockets.

A container's domain (container_t) may read, write, and execute files of the type container_file_t, if the level of the file is
s0, without categories: each container has categories of its own. The domain may connect to sockets of processes in spc_t.
The domain may use neither var_lib_t and var_run_t, the types of /var/lib and /run, nor a service that systemd started.

Source: containers/container-selinux 2.250.0, container.te (`container_spc_stream_connect`); fedora-selinux/selinux-policy,
policy/mcs; the kernel's security/selinux/selinuxfs.c and hooks.c (selinux_inode_setxattr).
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

_XATTR: Final = "security.selinux"
FOR_CONTAINERS: Final = "system_u:object_r:container_file_t:s0"
SERVER_TYPE: Final = "spc_t"  # domain of processes to whose sockets containers may connect

Label = Callable[[Path], None]  # labels a file or folder for containers, where SELinux is enabled


class SelinuxMode(StrEnum):
    OFF = "off"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


def read_mode(roots: Iterable[Path]) -> SelinuxMode:
    """Return the mode of SELinux. `roots`: folders that may have the host's selinuxfs, at sys/fs/selinux; in a container the
    folder at which the host's root is mounted."""
    for root in roots:
        with contextlib.suppress(OSError):
            enforcing = (root / "sys/fs/selinux/enforce").read_text().strip() == "1"
            return SelinuxMode.ENFORCING if enforcing else SelinuxMode.PERMISSIVE
    return SelinuxMode.OFF


def make_label(*roots: Path) -> Label:
    """Return the function that labels a file or folder for containers, if one of these roots has an enabled SELinux.

    A label that cannot be set is no error: the file system may have a fixed label (mount option `context=`), and a runtime that
    gives containers no domain needs none. `lading-doctor` compares the labels.
    """

    def label(path: Path) -> None:
        if read_mode(roots) is not SelinuxMode.OFF:
            with contextlib.suppress(OSError):
                os.setxattr(path, _XATTR, FOR_CONTAINERS.encode() + b"\0", follow_symlinks=False)

    return label


def no_label(_: Path) -> None:
    """Label nothing."""


def read_label(path: Path) -> str:
    """Return the label of a file, folder or socket; empty if it has none. Raise FileNotFoundError."""
    try:
        return os.getxattr(path, _XATTR, follow_symlinks=False).rstrip(b"\0").decode(errors="replace")
    except FileNotFoundError:
        raise
    except OSError:
        return ""


def read_domain(proc: Path, pid: int) -> str:
    """Return the label of a process, by the host's /proc; empty if it has none."""
    try:
        return (proc / str(pid) / "attr/current").read_text(errors="replace").rstrip("\0\n")
    except OSError:
        return ""


def type_of(label: str) -> str:
    """Return the type of a label: container_file_t of system_u:object_r:container_file_t:s0."""
    return next(iter(label.split(":")[2:3]), "")


def has_categories(label: str) -> bool:
    """Return whether the level of a label has categories: s0:c1,c2 does, s0 and s0-s0 do not."""
    return ":" in ":".join(label.split(":")[3:])
