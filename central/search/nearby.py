"""Describe the nearest miss of devices that must be in one place: a scope, a VF on each switch or of each PF, an NVSwitch
partition.

Take a node's free capacity (`NodeCapacity`), a demand, and whether the demand would fit on an empty node. Return one line with
numbers that names the closest place.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import Scope
from central.search.demand import Demand, Wanted
from central.search.joint import sites_of
from central.search.shortage import is_requested, short_of_cards, vfs_by_pf
from central.search.topology import Layout, Site, bits, lay_out
from lading.devices.identity import pci_order
from lading.nodedevices import Partition, Place

_CALLED: Final = {Scope.SWITCH: "switch", Scope.NUMA: "NUMA node", Scope.SOCKET: "socket", Scope.ANY: "node"}


def explain_scope(capacity: NodeCapacity, demand: Demand, *, now: bool) -> str:
    """Describe the site of the scope that comes closest to the request: by free devices (`now`), or by all usable devices. An
    example: "2 free GPUs and 2 free VFs below one switch asked; the nearest has 2 GPUs and 1 VF (0000:16:00.0)"."""
    layout = lay_out(capacity, vfs=True)
    sites = sites_of(layout.topology, demand.scope)

    def nearest_counts(wanted: Wanted, site: Site) -> tuple[int, int]:
        cards = sum(_would_do(_card(capacity, layout, number), demand, wanted, now=now) for number in bits(site.cards))
        return cards, sum(_vf_would_do(capacity, layout, number, site, now=now) for number in range(len(layout.vfs)))

    def met(wanted: Wanted, site: Site) -> int:
        cards, vfs = nearest_counts(wanted, site)
        return min(cards, wanted.count) + min(vfs, wanted.vfs)

    requested = sorted(demand.wanted, key=lambda one: max((met(one, site) for site in sites), default=0) - one.count - one.vfs)[
        0
    ]
    free, scope = "free " if now else "", _CALLED[demand.scope]
    text = f"{_counted(requested.count, requested.vfs, free)} in one {scope} asked".replace("in one switch", "below one switch")
    if not sites:
        return text
    best = max(sites, key=lambda site: met(requested, site))
    cards, vfs = nearest_counts(requested, best)
    have = " and ".join(
        count_of(n, of) for n, of, wants in ((cards, "GPU", requested.count), (vfs, "VF", requested.vfs)) if wants
    )
    return f"{text}; the nearest has {have} ({_name(capacity, layout, best, demand.scope)})"


def explain_switches(capacity: NodeCapacity, demand: Demand, *, now: bool) -> str:
    layout = lay_out(capacity, vfs=True)
    requested = max(demand.wanted, key=lambda one: (one.vfs > 0, one.count))
    serving = 0
    most = (-1, "no switch")
    for site in sites_of(layout.topology, Scope.SWITCH):
        cards = sum(_would_do(_card(capacity, layout, number), demand, requested, now=now) for number in bits(site.cards))
        vfs = sum(_vf_would_do(capacity, layout, number, site, now=now) for number in range(len(layout.vfs)))
        serving += cards if vfs >= requested.vfs else 0
        if cards and vfs > most[0]:
            most = vfs, _name(capacity, layout, site, Scope.SWITCH)
    free = "free " if now else ""
    text = f"{_counted(requested.count, 0, free)} asked below switches with {_counted(0, requested.vfs, free)} each"
    beside = f"the most VFs beside such a GPU: {max(most[0], 0)} ({most[1]})"
    return f"{text}; there {'is' if serving == 1 else 'are'} {serving}; {beside}"


def explain_pfs(capacity: NodeCapacity, demand: Demand, *, now: bool) -> str:
    ports = vfs_by_pf(capacity)
    free = {pf: sum(vf.free for vf in vfs) for pf, vfs in ports.items()}
    fewest = min(ports, key=lambda pf: (free[pf] if now else len(ports[pf]), pci_order(pf)), default=None)
    text = f"{_counted(0, demand.vfs_peak, 'free ' if now else '')} of each PF asked"
    return f"{text}; PF {fewest} has {free[fewest]} free of {len(ports[fewest])}" if fewest else text


def explain_partition(capacity: NodeCapacity, demand: Demand, *, now: bool) -> str:
    count = max((one.count for one in demand.wanted if one.whole), default=0)
    cards = {card.gpu.module_id: card for card in capacity.cards if is_requested(card, demand)}
    text = f"an NVSwitch partition of {count_of(count, 'GPU')} asked"
    sizes = sorted({len(partition.modules) for partition in capacity.partitions})
    of_size = [partition for partition in capacity.partitions if len(partition.modules) == count]
    if not now or not of_size:
        return f"{text}; the node has {'partitions of ' + ', '.join(map(str, sizes)) if sizes else 'no partitions'}"

    def free(partition: Partition) -> int:
        return sum(module in cards and cards[module].free for module in partition.modules)

    best = max(of_size, key=free)
    modules = ", ".join(map(str, best.modules))
    return f"{text}; of {len(of_size)} such the nearest has {free(best)} free (partition {best.id}: modules {modules})"


def _would_do(card: CardCapacity, demand: Demand, wanted: Wanted, *, now: bool) -> bool:
    """Return whether the card can serve the request, as it is held (`now`) or if no pod held anything."""
    if not is_requested(card, demand):
        return False
    short = short_of_cards([card], replace(wanted, count=1))
    return short is None or (not now and not short.unresolvable)


def _card(capacity: NodeCapacity, layout: Layout, number: int) -> CardCapacity:
    return capacity.cards[layout.cards[number]]


def _vf_would_do(capacity: NodeCapacity, layout: Layout, number: int, site: Site, *, now: bool) -> bool:
    vf = capacity.vfs[layout.vfs[number]]
    return layout.topology.port_of[number] in site.ports and (vf.free if now else vf.usable)


def _counted(cards: int, vfs: int, free: str) -> str:
    return " and ".join(count_of(count, f"{free}{of}") for count, of in ((cards, "GPU"), (vfs, "VF")) if count)


def count_of(count: int, of: str) -> str:
    return f"{count} {of}" if count == 1 else f"{count} {of}s"


_NAMED: Final[dict[Scope, Callable[[Place], str]]] = {
    Scope.NUMA: lambda place: f"NUMA node {place.numa}" if place.numa is not None else "",
    Scope.SOCKET: lambda place: f"socket {place.socket}" if place.socket is not None else "",
}


def _name(capacity: NodeCapacity, layout: Layout, site: Site, scope: Scope) -> str:
    places = [_card(capacity, layout, number).gpu.place for number in bits(site.cards)]
    in_site = (number for number, port in enumerate(layout.topology.port_of) if port in site.ports)
    places += [capacity.vfs[layout.vfs[number]].pf.place for number in in_site]
    if scope in _NAMED:
        return next((name for place in places if (name := _NAMED[scope](place))), "of unknown place")
    return _common([place.path for place in places]) or "of unknown place"


def _common(paths: Sequence[tuple[str, ...]]) -> str:
    """Return the deepest PCIe bridge that all paths have in common."""
    common = ""
    for bridges in zip(*paths, strict=False):
        if len(set(bridges)) > 1:
            break
        common = bridges[0]
    return common
