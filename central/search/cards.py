"""Track one card during one search: the capacity that other pods left, and the part that this pod takes in each phase.

Take the card's free capacity (`CardCapacity`), the number of containers that may share it under the isolation of this pod's
shares, and a container's request. The only decision is whether the request fits on the card.

Tests: tests/unit/central/search/test_container_search.py
"""

import sys

from central.ledger.model import CardCapacity
from central.search.demand import Wanted
from lading.devices.identity import pci_order
from lading.nodedevices import Gpu

CardState = tuple[object, ...]


class Card:
    __slots__ = (
        "address",
        "busy",
        "containers",
        "core",
        "free",
        "free_core",
        "free_mib",
        "gpu",
        "mib",
        "most_containers",
        "number",
        "usable_mib",
        "whole",
    )

    def __init__(self, capacity: CardCapacity, phases: int, number: int, at_most: int = sys.maxsize) -> None:
        gpu = capacity.gpu
        self.gpu: Gpu = gpu
        self.number = number  # number of the card in the node's topology
        self.address = pci_order(gpu.bdf)
        self.usable_mib = gpu.usable_mib
        self.free = capacity.pods == 0  # whether no other pod holds any of the card
        self.free_mib = capacity.free_mib
        self.free_core = capacity.free_core
        self.containers = capacity.containers  # number of containers on the card, this pod's included
        self.most_containers = at_most if at_most < gpu.max_shares else gpu.max_shares  # maximum containers
        self.busy = 0  # bit mask: phases in which this pod uses the card
        self.whole = 0  # bit mask: phases in which one container has the whole card
        self.mib = [0] * phases
        self.core = [0] * phases

    def takes(self, wanted: Wanted) -> bool:
        """Return whether the container's request also fits on the card."""
        if wanted.whole:
            return self.free and not self.busy & wanted.mask
        if self.whole & wanted.mask:
            return False
        if self.containers >= self.most_containers:
            return False
        mib = wanted.mib_of(self.usable_mib)
        if mib < 1:  # a percentage of a very small card rounds down to 0 MiB
            return False
        core = wanted.core_percent or 0
        if not self.busy:
            return mib <= self.free_mib and core <= self.free_core
        return all(self.mib[n] + mib <= self.free_mib and self.core[n] + core <= self.free_core for n in wanted.phases)

    def put(self, wanted: Wanted, sign: int = 1) -> None:
        self.containers += sign
        if wanted.whole:
            self.whole ^= wanted.mask
            self.busy ^= wanted.mask
            return
        mib, core = wanted.mib_of(self.usable_mib) * sign, (wanted.core_percent or 0) * sign
        for phase in wanted.phases:
            self.mib[phase] += mib
            self.core[phase] += core
        self.busy = self.whole
        for phase, (some_mib, some_core) in enumerate(zip(self.mib, self.core, strict=True)):
            if some_mib or some_core:
                self.busy |= 1 << phase

    def beyond(self, wanted: Wanted) -> int:
        """Return what the pod would take of the card beyond its use in other phases: 0 nothing, 1 less than requested, 2 all of
        the request."""
        if not self.busy:
            return 2
        if self.whole:
            return 0
        if wanted.whole:
            return 1
        mib, core = wanted.mib_of(self.usable_mib), wanted.core_percent or 0
        more_mib = max(self.mib[n] for n in wanted.phases) + mib - max(self.mib)
        more_core = max(self.core[n] for n in wanted.phases) + core - max(self.core)
        if more_mib <= 0 and more_core <= 0:
            return 0
        return 1 if more_mib < mib or max(0, more_core) < core else 2

    def state(self) -> CardState:
        """Return a key that is equal for cards between which a search need not distinguish. The key has no `busy`, which
        follows from the other fields."""
        sizes = (self.usable_mib, self.free, self.free_mib, self.free_core, self.most_containers - self.containers)
        return (*sizes, self.whole, tuple(self.mib), tuple(self.core))
