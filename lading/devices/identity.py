"""Parse the names of devices and containers in annotations into one spelling for each.

A text of another shape gives None. Nothing is looked up here: `grant.choose` checks whether the device exists. Sources:
PCI addresses as Linux prints them (`%04x:%02x:%02x.%d`, domains may be longer),
UUIDs as drivers print them, DNS labels (RFC 1123 §2.1, as Kubernetes uses them for container names), ib_device_register_name.

An instance on a card that Lading divides gets another UUID each time it is made, and has none before. So `position_name` names
it by its position, which stays the same. Source: NVML API reference, nvmlDeviceGetGpuInstancePossiblePlacements; NVIDIA MIG
user guide, "MIG Device Placement".
"""

import re
from typing import Final, NamedTuple

from lading.vocabulary import GpuUuid, PciAddress

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

# Each name has one spelling, which these regular expressions define.
PCI_SHAPE: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
GPU_SHAPE: Final = rf"GPU-{_UUID}"
MIG_PROFILE_SHAPE: Final = r"(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z.]{1,8}){0,2}"
_POSITION: Final = r"[1-9][0-9a-z.+-]{3,31}@[0-9]{1,2}"  # profile (shape above) and first slice; short, for messages
# Drivers before 470 use the second form. The third is a position where Lading makes an instance (position_name).
MIG_SHAPE: Final = rf"MIG-(?:{_UUID}|GPU-{_UUID}/(?:[0-9]{{1,3}}/[0-9]{{1,3}}|{_POSITION}))"

_PCI: Final = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])")
_GPU: Final = re.compile(rf"gpu-({_UUID})")
_MIG: Final = re.compile(rf"mig-({_UUID})")
_MIG_BY_CARD: Final = re.compile(rf"mig-gpu-({_UUID})/([0-9]{{1,3}})/([0-9]{{1,3}})")
_MIG_POSITION: Final = re.compile(rf"mig-gpu-({_UUID})/({_POSITION})")
_CONTAINER: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_IBDEV: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")  # IB_DEVICE_NAME_MAX is 64 with the NUL
_IFNAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")  # IFNAMSIZ is 16 with the NUL

_TAKEN_IFNAMES: Final = frozenset({"lo", "all", "default"})  # `lo` exists everywhere; `all` and `default` are sysctls

_SHOWN: Final = 60  # maximum characters of a value in a message: the pod's events and gRPC's status are bounded


def parse_pci_address(text: str) -> PciAddress | None:
    """Parse a PCI address. `00000000:3B:00.2` and `0000:3b:00.2` are one address: lower case, the domain in four digits if they
    suffice."""
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return PciAddress(f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower())


def pci_order(bdf: str) -> tuple[int, str]:
    """Return a sort key by which PCI addresses sort as numbers: a domain of five digits comes after those of four."""
    return len(bdf), bdf


def parse_gpu_uuid(text: str) -> GpuUuid | None:
    match = _GPU.fullmatch(text.lower())
    return GpuUuid(f"GPU-{match[1]}") if match else None


def parse_mig_uuid(text: str) -> str | None:
    lower = text.lower()
    if match := _MIG.fullmatch(lower):
        return f"MIG-{match[1]}"
    if match := _MIG_BY_CARD.fullmatch(lower):
        return f"MIG-GPU-{match[1]}/{int(match[2])}/{int(match[3])}"
    if match := _MIG_POSITION.fullmatch(lower):
        return f"MIG-GPU-{match[1]}/{match[2]}"
    return None


def is_container_name(text: str) -> bool:
    return _CONTAINER.fullmatch(text) is not None


def is_ibdev(text: str) -> bool:
    return _IBDEV.fullmatch(text) is not None


def is_ifname(text: str) -> bool:
    return _IFNAME.fullmatch(text) is not None and text not in _TAKEN_IFNAMES


def shown_value(value: object) -> str:
    """Return a short text for any JSON value, for messages."""
    match value:
        case None:
            return "missing or null"
        case bool():
            return "true" if value else "false"
        case str():
            return shown(value)
        case int() | float():
            return repr(value)
        case list():
            return "an array"
        case _:
            return "an object"


def shown(text: str) -> str:
    """Return the value quoted for a message: bounded, on one line, control characters and lone surrogates escaped."""
    return repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + "…"


class MemorySpan(NamedTuple):
    """Represent consecutive memory slices of a card, which are mostly eighths of its memory."""

    start: int
    size: int

    def overlaps(self, other: "MemorySpan") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


def position_name(card: GpuUuid, profile: str, start: int) -> str:
    """Return the name of an instance of a card that Lading divides. `start` is its first memory slice."""
    return f"MIG-{card}/{profile}@{start}"
