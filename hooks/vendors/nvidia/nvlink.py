"""Count the active NVLinks of one GPU, by peer GPU (PCI address) and to NVSwitches, inside an open NVML session.

A card without NVLink, a link number that the card lacks, and a driver without this call mean no links, and are no errors. Links
to devices that are neither GPU nor NVSwitch (an IBM processor) are left out. Other NVML errors are raised to the caller.

Source: NVML API reference, NvLink Methods. A reset may change a link's peer, so the links are read at every poll.
"""

from collections import Counter
from typing import Any

import pynvml

from hooks.model.inventory import NvLink
from hooks.vendors.nvidia.session import UNKNOWN
from lading.devices.identity import parse_pci_address
from lading.nvml import ask
from lading.vocabulary import PciAddress


def read_links(handle: Any) -> tuple[NvLink, ...]:
    """Return the links in order of the peers' PCI addresses, and those to NVSwitches last. Raise NVMLError."""
    peers: Counter[PciAddress] = Counter()
    to_switches = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _is_active(handle, link):
            continue
        match _read_kind(handle, link):
            case pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                to_switches += 1
            case pynvml.NVML_NVLINK_DEVICE_TYPE_GPU | pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN:
                if peer := parse_pci_address(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)):
                    peers[peer] += 1
    links = [NvLink(count=count, peer=peer) for peer, count in sorted(peers.items())]
    return (*links, NvLink(count=to_switches)) if to_switches else tuple(links)


def _is_active(handle: Any, link: int) -> bool:
    """Return whether a link is active; False also if the driver or card has fewer links than pynvml's maximum."""
    state = ask(lambda: pynvml.nvmlDeviceGetNvLinkState(handle, link), None, absent=UNKNOWN)
    return bool(state == pynvml.NVML_FEATURE_ENABLED)


def _read_kind(handle: Any, link: int) -> int:
    """Return the device type at the link's other end. Older drivers do not report it: then the peer's address decides."""
    unknown = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    return int(ask(lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), unknown, absent=UNKNOWN))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
