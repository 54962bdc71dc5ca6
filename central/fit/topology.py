"""How close two devices are, as keys that sort: larger is closer.

What the node does not know (an empty path, no NUMA node) is close to nothing.

Source: `nvidia-smi topo -m` orders links alike: NV#, PIX and PXB (switches), PHB (host bridge), NODE (NUMA), SYS.
"""

from lading.nodedevices import Gpu, Place


def switch_of(gpu: Gpu) -> tuple[str, ...]:
    """The bridges above the card without its own port: cards of one switch have it in common."""
    return gpu.place.path[:-1]


def closeness(one: Place, other: Place) -> tuple[int, bool]:
    """Bridges in common from the host bridge down, then the NUMA node."""
    common = 0
    for bridge, other_bridge in zip(one.path, other.path, strict=False):  # of different depth
        if bridge != other_bridge:
            break
        common += 1
    return common, one.numa is not None and one.numa == other.numa


def link(one: Gpu, other: Gpu) -> tuple[int, int, bool]:
    """NVLinks between two cards, or through their switch; then PCIe."""
    return _nvlinks(one, other), *closeness(one.place, other.place)


def _nvlinks(one: Gpu, other: Gpu) -> int:
    direct = sum(links.count for links in one.links if links.to == other.uuid)
    if direct:
        return direct
    return min(_to_switch(one), _to_switch(other))


def _to_switch(gpu: Gpu) -> int:
    return sum(links.count for links in gpu.links if not links.to)
