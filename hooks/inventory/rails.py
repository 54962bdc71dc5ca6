"""Determine the rail of each PF of the node: from the configuration, else from the order of the PFs.

Rail r is NIC r of every node, on one leaf switch: traffic between equal rails is one hop, between others it crosses a spine. A
node cannot see its cables, but nodes are usually built alike: of several PFs of one kind, the n-th in PCI order is on the n-th
leaf switch. This is the default. If the default is wrong for a cluster, gangs get worse places, and nothing else happens.

PFs are of one kind if their link layer and their fastest PCIe link are equal. The speed of a port does not count: it falls when
a cable is pulled, which would renumber all later PFs. Only the kind with the most PFs has rails, because other kinds are on
other fabrics (storage). No kind has rails if two kinds have the most PFs, or if the kind has fewer than FEWEST PFs: one or two
NICs may be on any switch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from hooks.model.inventory import Pf
from lading.devices.identity import pci_order
from lading.vocabulary import PciAddress

FEWEST: Final = 3


def with_rails(pfs: Sequence[Pf], configured: Mapping[PciAddress, int]) -> tuple[Pf, ...]:
    """Return the PFs with their rails. If some are configured, the others have none."""
    if configured:
        return tuple(replace(pf, rail=configured.get(pf.bdf)) for pf in pfs)
    kinds = Counter(map(_kind, pfs))
    match kinds.most_common(2):
        case [(kind, size), *others] if size >= FEWEST and not any(other == size for _, other in others):
            numbers = count()
            in_order = sorted(pfs, key=lambda pf: pci_order(pf.bdf))
            rails = {pf.bdf: next(numbers) for pf in in_order if _kind(pf) == kind}
            return tuple(replace(pf, rail=rails.get(pf.bdf)) for pf in pfs)
        case _:
            return tuple(pfs)


def unknown_rails(pfs: Sequence[Pf], configured: Mapping[PciAddress, int]) -> tuple[str, ...]:
    """Return messages about PFs in the configuration that the node does not have."""
    there = {pf.bdf for pf in pfs}
    return tuple(
        f"rails in the configuration has {bdf} = {rail}, and {bdf} is no RDMA PF of this node"
        for bdf, rail in configured.items()
        if bdf not in there
    )


def _kind(pf: Pf) -> tuple[str, str]:
    return pf.link_layer, pf.pcie
