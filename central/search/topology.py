"""Compute how close the devices of one node are, as levels: the smaller the level, the closer.

A *distance* is between any two PCI functions: through one switch, through several that hang below one another, below one host
bridge, in one NUMA node, on one socket, or across. A *link* is between two GPUs: the more NVLinks the better, and any NVLink is
better than PCIe. For a pod that requests one switch, all devices below one root port are below one switch, even if it consists
of several. The number of switches between them only decides which of two choices is closer. Two switches below one host bridge
are two. An unknown place (an empty path, no NUMA node) equals nothing, not even another unknown place.

Take the places and links of a node's devices. Return a `NodeTopology`, which numbers devices in the order of their addresses.
Nodes with the same hardware share one object, so that cached results for one of them hold for all.

Source: `nvidia-smi topo -m` has the same order: NV#, PIX (one switch), PXB (several), PHB (host bridge), NODE (NUMA), SYS.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import is_
from typing import Final, NamedTuple

from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from lading.devices.identity import pci_order
from lading.nodedevices import Gpu, Partition, Pf, Place

MOST_NVLINKS: Final = 18  # maximum NVLinks of one GPU, from H100 to B200; more would count as this many


class Distance(IntEnum):
    SWITCH = 0
    SWITCHES = 1  # below one root port: "one switch" for a scope and a policy for VFs
    BRIDGE = 2
    NUMA = 3
    SOCKET = 4
    CROSS = 5


_LINK_LEVELS: Final = MOST_NVLINKS + len(Distance)


def distance(one: Place, other: Place) -> Distance:
    both = zip(Distance, _groups_of(one), _groups_of(other), strict=False)
    return next((level for level, group, its in both if group is not None and group == its), Distance.CROSS)


def _groups_of(place: Place) -> tuple[Hashable, ...]:
    """Return, for each Distance except CROSS, a key that is equal for all places within that distance; None for an unknown
    place.

    The last bridge above a function is its own port of the switch, and the bridge before it is the switch's upstream port.
    Below a root port without a switch there are only functions of the same slot. So two places with the same first key have the
    same second key too."""
    path = place.path
    port = path[:2] if len(path) > 1 else None
    return path[:-1] if len(path) > 2 else port, port, path[0] if path else None, place.numa, place.socket


def link_level(nvlinks: int, distance: Distance | int) -> int:
    """Return the level of a link, the lower the closer: 0 for MOST_NVLINKS or more, MOST_NVLINKS - 1 for one NVLink, and higher
    levels for PCIe by distance."""
    return MOST_NVLINKS - min(nvlinks, MOST_NVLINKS) if nvlinks else MOST_NVLINKS + distance


def link(one: Gpu, other: Gpu) -> int:
    return link_level(nvlinks(one, other), distance(one.place, other.place))


def nvlinks(one: Gpu, other: Gpu) -> int:
    """Return the number of direct NVLinks between two cards, or else of those through their switch. If the two cards report
    different numbers of direct links, the higher one counts."""
    direct = max(_to(one, other), _to(other, one))
    return direct or min(_to_switch(one), _to_switch(other))


def _to(one: Gpu, other: Gpu) -> int:
    return sum(links.count for links in one.links if links.to == other.uuid)


def _to_switch(gpu: Gpu) -> int:
    return sum(links.count for links in gpu.links if not links.to)


def bits(mask: int) -> list[int]:
    """Return the numbers of the bits that are set in the mask, ascending."""
    numbers: list[int] = []
    while mask:
        low = mask & -mask
        mask ^= low
        numbers.append(low.bit_length() - 1)
    return numbers


def _nvlinks_of(gpus: Sequence[Gpu]) -> tuple[tuple[int, ...], ...]:
    """Return the number of NVLinks between each two cards; empty if there are none. Equal links through a switch have a fast
    path, because thousands of nodes are read when central starts."""
    linked = [gpu for gpu in gpus if gpu.links]
    if not linked:
        return ()
    if all(not links.to for gpu in linked for links in gpu.links):
        through = [_to_switch(gpu) for gpu in gpus]
        return tuple(
            tuple(min(a, b) if one != other else 0 for other, b in enumerate(through)) for one, a in enumerate(through)
        )
    return tuple(tuple(nvlinks(a, b) if a is not b else 0 for b in gpus) for a in gpus)


class Distances(NamedTuple):
    """Represent how far apart the devices of one container are; for a pod, the worst of its containers. Less is better, and
    earlier fields are more important, as in joint.py."""

    split: int = 0  # 1: several cards are no NVSwitch partition, although one is preferred and the node has some
    link: int = 0  # worst link between two GPUs; 0 without a pair
    distance: int = 0  # worst distance between a GPU and its VF; 0 without a pair

    @property
    def level(self) -> int:
        """Return one number that orders like this value, comparable between any two nodes."""
        return (self.split * _LINK_LEVELS + self.link) * len(Distance) + self.distance


NEXT_TO: Final = Distances()
FARTHEST: Final = Distances(1, _LINK_LEVELS - 1, Distance.CROSS).level


def worst_of(some: Iterable[Distances]) -> Distances:
    return Distances(*map(max, zip(NEXT_TO, *some, strict=True)))


class Site(NamedTuple):
    """Represent a group of devices within some distance of one another, such as a switch, a host bridge or a NUMA node."""

    number: int
    levels: tuple[int, ...]  # distances at which this is a group, ascending; empty: an intermediate site
    cards: int  # bit mask of card numbers
    ports: tuple[int, ...]  # numbers of PFs, ascending
    children: tuple["Site", ...]  # no or two parts of this site


@dataclass(frozen=True, slots=True, eq=False)
class NodeTopology:
    """Describe the topology of one kind of node. Topologies are compared by identity, because nodes that are built alike share
    one object (`lay_out`)."""

    links: tuple[tuple[int, ...], ...]  # link level, card by card; 0 on the diagonal
    distances: tuple[tuple[int, ...], ...]  # Distance values, card by PF
    port_of: tuple[int, ...]  # the PF of each VF
    groups: tuple[tuple[Site, ...], ...]  # sites, by Distance
    partitions: tuple[int, ...]  # NVSwitch partitions with all cards present, as bit masks, lowest addresses first
    parted: bool  # whether the node has partitions, even with missing cards
    kept: tuple[int, ...]  # sets of two or more cards to keep whole: partitions, and the cards of one switch

    even: bool  # True if all pairs of cards have equal links, and there are no partitions

    @property
    def cards(self) -> int:
        return len(self.links)


class Layout(NamedTuple):
    """Map the numbers of a topology to the devices of one node (`NodeCapacity`)."""

    topology: NodeTopology
    cards: tuple[int, ...]  # index into NodeCapacity.cards, by card number
    vfs: tuple[int, ...]


_KINDS: dict[Hashable, NodeTopology] = {}
# The key is the `id()` of a node's last device, and whether VFs are included. The entry keeps all devices alive, and is valid
# for exactly these objects.
_LAYOUTS: dict[tuple[int, bool], tuple[Layout, tuple[object, ...]]] = {}
REMEMBERED: Final = 32768  # maximum cached layouts, some hundred bytes each; a cluster has 15,000 nodes


def lay_out(capacity: NodeCapacity, *, vfs: bool) -> Layout:
    """Return the layout of a node (`NodeCapacity`). `vfs` includes its VFs; a layout without VFs is faster, and enough for a
    request without VFs."""
    cards, requested = capacity.cards, capacity.vfs if vfs else ()
    devices = (capacity.partitions, *[card.gpu for card in cards], *[vf.vf for vf in requested], *[vf.pf for vf in requested])
    key = id(devices[-1]), vfs
    known = _LAYOUTS.get(key)
    if known is None or len(known[1]) != len(devices) or not all(map(is_, known[1], devices)):
        if len(_LAYOUTS) >= REMEMBERED:
            _LAYOUTS.clear()
        known = _LAYOUTS[key] = _lay_out(cards, requested, capacity.partitions), devices
    return known[0]


def _lay_out(cards: Sequence[CardCapacity], vfs: Sequence[VfCapacity], partitions: Sequence[Partition]) -> Layout:
    card_order = sorted(range(len(cards)), key=lambda n: pci_order(cards[n].gpu.bdf))
    vf_order = sorted(range(len(vfs)), key=lambda n: pci_order(vfs[n].vf.bdf))
    gpus = [cards[n].gpu for n in card_order]
    pfs = sorted({vf.pf.bdf: vf.pf for vf in vfs}.values(), key=lambda pf: pci_order(pf.bdf))
    number = {pf.bdf: n for n, pf in enumerate(pfs)}
    port_of = tuple(number[vfs[n].pf.bdf] for n in vf_order)
    return Layout(_topology(gpus, pfs, port_of, partitions), tuple(card_order), tuple(vf_order))


def _topology(
    gpus: Sequence[Gpu], pfs: Sequence[Pf], port_of: tuple[int, ...], partitions: Sequence[Partition]
) -> NodeTopology:
    levels = _levels((*(gpu.place for gpu in gpus), *(pf.place for pf in pfs)))
    nvlinks_of = _nvlinks_of(gpus)
    masks = _masks(tuple(gpu.module_id for gpu in gpus), tuple(partitions))
    kind = levels, len(gpus), nvlinks_of, port_of, masks, bool(partitions)
    known = _KINDS.get(kind)
    if known is None:
        if len(_KINDS) >= REMEMBERED:
            _KINDS.clear()
        known = _KINDS[kind] = _of_kind(levels, len(gpus), nvlinks_of, port_of, masks, parted=bool(partitions))
    return known


# Cached, because thousands of nodes of some dozen kinds are read when central starts.
@lru_cache(maxsize=1024)
def _masks(modules: tuple[int | None, ...], partitions: tuple[Partition, ...]) -> tuple[int, ...]:
    """Return the partitions as bit masks of cards; partitions with a missing card are left out."""
    number = {module: n for n, module in enumerate(modules) if module is not None}
    there = [set(one.modules) for one in partitions if one.modules and number.keys() >= set(one.modules)]
    return tuple(sorted({sum(1 << number[module] for module in its) for its in there}, key=bits))


@lru_cache(maxsize=1024)
def _levels(places: tuple[Place, ...]) -> tuple[tuple[int, ...], ...]:
    """Return, for each Distance, the group of each device, named by the first device in the group.

    The groups are a hierarchy. If devices below one host bridge report different NUMA nodes, or one reports none, they are one
    group from that level on. So all devices below a bridge are in the same group at each higher level."""
    groups = list(range(len(places)))
    of_places = [_groups_of(place) for place in places]
    levels = []
    for level in range(Distance.CROSS):
        groups = _joined(groups, [its[level] for its in of_places])
        levels.append(tuple(groups))
    return *levels, (0,) * len(places)


def _joined(groups: Sequence[int], keys: Sequence[Hashable]) -> list[int]:
    """Join groups that have members with an equal key."""
    joined = list(groups)
    first: dict[Hashable, int] = {}
    for device, key in enumerate(keys):
        if key is None:
            continue
        one, other = joined[first.setdefault(key, device)], joined[device]
        if one != other:
            low, high = sorted((one, other))
            joined = [low if group == high else group for group in joined]
    return joined


def _of_kind(
    levels: tuple[tuple[int, ...], ...],
    cards: int,
    nvlinks_of: tuple[tuple[int, ...], ...],
    port_of: tuple[int, ...],
    partitions: tuple[int, ...],
    *,
    parted: bool,
) -> NodeTopology:
    ports = len(levels[0]) - cards

    def distance(one: int, other: int) -> int:
        return next(level for level in Distance if levels[level][one] == levels[level][other])

    sites: list[Site] = []
    _site(sites, levels, Distance.CROSS, list(range(cards + ports)), cards)
    groups = tuple(tuple(site for site in sites if level in site.levels) for level in Distance)
    on_switches = (site.cards for site in groups[Distance.SWITCHES])
    links = tuple(
        tuple(0 if a == b else link_level(nvlinks_of[a][b] if nvlinks_of else 0, distance(a, b)) for b in range(cards))
        for a in range(cards)
    )
    return NodeTopology(
        links=links,
        distances=tuple(tuple(distance(card, cards + port) for port in range(ports)) for card in range(cards)),
        port_of=port_of,
        groups=groups,
        partitions=partitions,
        parted=parted,
        kept=tuple(sorted({mask for mask in (*partitions, *on_switches) if mask.bit_count() > 1})),
        even=not parted and len({links[a][b] for a in range(cards) for b in range(a)}) < 2,
    )


def _site(sites: list[Site], levels: Sequence[Sequence[int]], level: int, devices: Sequence[int], cards: int) -> Site:
    """Return the group of these devices at this level, with all groups below it; append each to `sites`."""
    own = [level]
    while level > 0:
        parts: dict[int, list[int]] = {}
        for device in devices:
            parts.setdefault(levels[level - 1][device], []).append(device)
        level -= 1
        if len(parts) > 1:
            children = [_site(sites, levels, level, part, cards) for part in parts.values()]
            return _paired(sites, tuple(reversed(own)), children)
        own.append(level)
    mask = sum(1 << device for device in devices if device < cards)
    ports = tuple(device - cards for device in devices if device >= cards)
    return _added(sites, Site(len(sites), tuple(reversed(own)), mask, ports, ()))


def _paired(sites: list[Site], levels: tuple[int, ...], children: Sequence[Site]) -> Site:
    """Return one site for these children. Intermediate sites are added so that each site has at most two children: results for
    a half can be reused in several wholes."""
    if len(children) > 2:
        half = len(children) // 2
        children = [_paired(sites, (), part) if len(part) > 1 else part[0] for part in (children[:half], children[half:])]
    one, other = children
    ports = tuple(sorted((*one.ports, *other.ports)))
    return _added(sites, Site(len(sites), levels, one.cards | other.cards, ports, (one, other)))


def _added(sites: list[Site], site: Site) -> Site:
    sites.append(site)
    return site


NO_LAYOUT: Final = Layout(_topology((), (), (), ()), (), ())  # layout without devices
