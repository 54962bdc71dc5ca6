"""Say on which rail each PF of the node is: as the configuration says, else as far as the node itself shows.

Rail r is NIC r of every node, on one leaf switch: traffic between equal rails is one hop, between others it crosses a spine. A
node cannot see its cables. What it can see is that it was built like the others: of several PFs of one kind, the n-th in PCI
order is on the n-th leaf switch. So that is the default, and where it is wrong a gang is placed as if it were right, no more.

PFs are of one kind if their link layer and their fastest PCIe link are equal. The speed of a port is not looked at: it falls
when a cable is out, and all PFs after it would be counted anew. Only the kind with the most PFs has rails, because the others
are on other fabrics (storage); none has, if two kinds have as many, or if it has fewer than FEWEST: one or two NICs are on
whatever switches there are.
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
    """Return, in words, what the configuration says of PFs that the node does not have."""
    there = {pf.bdf for pf in pfs}
    return tuple(
        f"rails in the configuration has {bdf} = {rail}, and {bdf} is no RDMA PF of this node"
        for bdf, rail in configured.items()
        if bdf not in there
    )


def _kind(pf: Pf) -> tuple[str, str]:
    return pf.link_layer, pf.pcie
