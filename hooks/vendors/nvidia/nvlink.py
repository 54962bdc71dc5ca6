"""NVLinks of one GPU, counted by peer, inside an open NVML session.

It takes the card's handle. It returns how many active links lead to which GPU (by PCI address), and how many to NVSwitches. A
card without NVLink, a link number that it does not have, and a driver that does not know the question are no links and no
error. Links to what is neither GPU nor NVSwitch (an IBM processor) are left out. Any other answer is NVML's error, for the
caller.

Source: NVML API reference, NvLink Methods. Which link leads where may change with a reset, so it is read at every poll.
"""

from collections import Counter
from typing import Any

import pynvml

from hooks.model.inventory import NvLink
from hooks.vendors.nvidia.session import UNKNOWN, ask
from lading.devices.identity import parse_pci_address
from lading.vocabulary import PciAddress


def read_links(handle: Any) -> tuple[NvLink, ...]:
    """Return the links in order of the peers' addresses, the NVSwitches' last. Raise NVMLError."""
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
    """Return False also where this driver or card has fewer links than the header that pynvml was made from."""
    state = ask(lambda: pynvml.nvmlDeviceGetNvLinkState(handle, link), None, absent=UNKNOWN)
    return bool(state == pynvml.NVML_FEATURE_ENABLED)


def _read_kind(handle: Any, link: int) -> int:
    """Return the kind of the other end. Older drivers do not report it: then its address decides."""
    unknown = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    return int(ask(lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), unknown, absent=UNKNOWN))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
