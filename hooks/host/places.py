"""Find the place of a PCI function: the bridges above it, and the processor socket of its NUMA node.

It takes a function's address. It returns the facts that sysfs shows; the caller compares them to find devices that share a
switch. What sysfs does not show (no such function, a NUMA node without processors) is absent, never a guess.

Source: Documentation/ABI/testing/sysfs-bus-pci (the real path of a device is its place in the tree), sysfs-devices-system-cpu.
"""

import re
from pathlib import Path
from typing import Final

from hooks.host.attributes import read_attribute, read_int, read_real_path

# A host bridge's folder, `pci<domain>:<bus>`. It need not be the first: on some machines ACPI's or the platform's is above it.
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


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
