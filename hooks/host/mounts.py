"""Check that the files which are to be mounted into a container still exist.

Tests: tests/unit/hooks/vendors/nvidia/test_groups.py
"""

import os
import stat
from dataclasses import replace

from hooks.model.inventory import Driver, DriverMount


def recheck_mounts(driver: Driver) -> Driver:
    """Return the driver with the mounts whose sources exist now. Missing files of the driver are in `missing`; sockets, and
    files of optional groups, may be missing at any time.

    A runtime creates a directory in place of a missing source, and the driver's installer fails at that directory. A source
    can still disappear between this check and the mount; in mode cdi the runtime refuses a missing source.
    """
    sources = {_source(mount) for mount in (*driver.mounts, *driver.group_mounts)}
    absent = {host_path for host_path, mounted_at, kind in sources if not _is(kind, mounted_at)}
    if not absent:
        return driver
    missing = {mount.host_path for mount in driver.mounts if mount.host_path in absent and not mount.is_socket}
    mounts, group_mounts = (
        tuple(mount for mount in mounts if mount.host_path not in absent) for mounts in (driver.mounts, driver.group_mounts)
    )
    return replace(driver, mounts=mounts, group_mounts=group_mounts, missing=tuple(sorted(missing)))


def _source(mount: DriverMount) -> tuple[str, str, int]:
    return mount.host_path, mount.mounted_at or mount.host_path, stat.S_IFSOCK if mount.is_socket else stat.S_IFREG


def _is(kind: int, path: str) -> bool:
    """Check the kind of a file. Follow links, as the runtime does."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode) == kind  # noqa: PTH116  a Path costs more than the call
    except OSError:
        return False
