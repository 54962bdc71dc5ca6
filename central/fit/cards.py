"""One card during one search: what others left of it, what this pod takes of it in each phase so far, what still has room.

It takes a card's room, how many containers may share it by the isolation of this pod's shares, and what a container wants.
Nothing is decided here but whether there is room.
"""

import sys

from central.fit.demand import Wanted
from central.ledger.model import CardRoom
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

    def __init__(self, room: CardRoom, phases: int, number: int, at_most: int = sys.maxsize) -> None:
        gpu = room.gpu
        self.gpu: Gpu = gpu
        self.number = number  # in the node's topology
        self.address = pci_order(gpu.bdf)
        self.usable_mib = gpu.usable_mib
        self.free = room.pods == 0  # of other pods
        self.free_mib = room.free_mib
        self.free_core = room.free_core
        self.containers = room.containers  # on it, this pod's too
        self.most_containers = at_most if at_most < gpu.max_shares else gpu.max_shares  # that may share it
        self.busy = 0  # bit mask: phases in which this pod uses it
        self.whole = 0  # and those in which one container has it whole
        self.mib = [0] * phases
        self.core = [0] * phases

    def takes(self, wanted: Wanted) -> bool:
        """Return whether there is room for that container too."""
        if wanted.whole:
            return self.free and not self.busy & wanted.mask
        if self.whole & wanted.mask:
            return False
        if self.containers >= self.most_containers:
            return False
        mib = wanted.mib_of(self.usable_mib)
        if mib < 1:  # a percentage of nearly nothing
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
        """Return what the pod would take of the card beyond what it takes at other times: 0 nothing, 1 less than asked, 2 all
        of it."""
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
        """Return a key that is equal for cards between which a search need not distinguish. `busy` follows from the rest."""
        sizes = (self.usable_mib, self.free, self.free_mib, self.free_core, self.most_containers - self.containers)
        return (*sizes, self.whole, tuple(self.mib), tuple(self.core))
