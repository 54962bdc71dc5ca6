"""Detect that a driver was bound to a card again after the card was read.

The driver numbers its cards when it is bound to them: after an unbind, a reload of the module or a rescan of the bus, a minor
may belong to another card. sysfs creates the link `driver` of a device at each bind, and never uses an inode number twice, so
one lstat(2), which does not ask the driver, tells whether the numbers can still be true.

Source: Linux, drivers/base/dd.c (driver_sysfs_add), fs/kernfs/dir.c (kernfs ids).
"""

import os
from collections.abc import Iterable
from pathlib import Path

from hooks.model.inventory import Gpu
from lading.vocabulary import PciAddress


def read_binding(host_root: Path, bdf: PciAddress) -> int | None:
    """Return a number that differs after each bind; None without a driver."""
    try:
        return os.lstat(f"{host_root}/sys/bus/pci/devices/{bdf}/driver").st_ino  # a Path costs more than the call
    except OSError:
        return None


def find_rebound(host_root: Path, gpus: Iterable[Gpu]) -> tuple[PciAddress, ...]:
    """Return the cards whose driver was unbound, or bound again, since they were read."""
    bound = ((gpu.bdf, gpu.binding) for gpu in gpus if gpu.binding is not None)
    return tuple(bdf for bdf, binding in bound if read_binding(host_root, bdf) != binding)
