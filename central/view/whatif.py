"""The cluster as it would be: some pods gone, others placed. For advice only: nothing in the ledger changes by it.

Input: the scheduler as things are, who would be gone, who would be where. Output: rooms, and what a fit says to them, by the
same rules as central's own (central.ledger.room, central.fit): what is placed here could be reserved there.

cpu and memory count where the Node says what there is. What only kube-scheduler knows (selectors, affinity, taints, volumes) is
not looked at.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from central.ask.model import NO_REQUESTS, Ask, Requests
from central.assignment.model import Part
from central.assignment.sharing import UNLABELLED, Group, Labels, groups_of
from central.fit.model import Missing, NoFit, Placement
from central.ledger.model import CardRoom, NodeRoom
from central.scheduling.scheduler import Scheduler
from lading.vocabulary import GpuUuid, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A pod that would be there."""

    node: str
    ask: Ask
    placement: Placement
    requests: Requests = NO_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    scheduler: Scheduler
    gone: frozenset[PodUid] = frozenset()
    put: tuple[Put, ...] = ()

    def without(self, pods: Iterable[PodUid]) -> "WhatIf":
        return replace(self, gone=self.gone.union(pods))

    def with_put(self, one: Put) -> "WhatIf":
        return replace(self, put=(*self.put, one))

    @property
    def touched(self) -> tuple[str, ...]:
        """Return the nodes where a pod was placed. On nodes where pods are only gone, more fits than before."""
        return tuple(dict.fromkeys(one.node for one in self.put))

    def room(self, name: str) -> NodeRoom:
        room = self.scheduler.ledger.room_without(name, self.gone)
        for one in self.put:
            if one.node == name:
                room = take_from(room, one.placement, one.requests)
        return room

    def verdict(self, ask: Ask, name: str) -> Placement | NoFit:
        if self._group_nodes(ask) - {name}:
            return NoFit(missing=Missing.GROUP_ELSEWHERE)
        return self.scheduler.fit(self.room(name), ask)

    def place(self, ask: Ask, name: str, requests: Requests) -> Put | None:
        """None also where the node is known to lack the cpu or the memory."""
        if not has_resources(self.room(name), requests):
            return None
        found = self.verdict(ask, name)
        return Put(node=name, ask=ask, placement=found, requests=requests) if isinstance(found, Placement) else None

    def _group_nodes(self, ask: Ask) -> frozenset[str]:
        groups = _groups(ask)
        if not groups:
            return frozenset()
        return self.scheduler.group_nodes(ask, self.gone).union(one.node for one in self.put if _groups(one.ask) == groups)


def has_resources(room: NodeRoom, requests: Requests) -> bool:
    """Return whether the node has the requested cpu and memory; True if its amounts are not known."""
    if not room.resources_known:
        return True
    return requests.cpu_milli <= room.cpu_milli and requests.memory_mib <= room.memory_mib


def take_from(room: NodeRoom, placement: Placement, requests: Requests = NO_REQUESTS) -> NodeRoom:
    """As the ledger would show it after a reservation: no less than nothing is left of anything."""
    taken = placement.taken
    containers = Counter(gpu.uuid for container in placement.containers.values() for gpu in container.gpus)
    return replace(
        room,
        cards=tuple(_take_part(card, taken.gpus.get(card.gpu.uuid), containers) for card in room.cards),
        vfs=tuple(replace(vf, free=False) if vf.vf.bdf in taken.vfs else vf for vf in room.vfs),
        cpu_milli=max(0, room.cpu_milli - requests.cpu_milli),
        memory_mib=max(0, room.memory_mib - requests.memory_mib),
    )


def _take_part(card: CardRoom, part: Part | None, containers: Counter[GpuUuid]) -> CardRoom:
    if part is None:
        return card
    whole = part.whole or bool(part.mig)
    return replace(
        card,
        free_mib=0 if whole else max(0, card.free_mib - part.memory_mib),
        free_core=0 if whole else max(0, card.free_core - part.core_percent),
        pods=card.pods + 1,
        containers=card.containers + max(1, containers[card.gpu.uuid]),
        free_mig=() if part.whole else tuple(mig for mig in card.free_mig if mig not in part.mig),
        sharers=_sharers(card, part.sharing),
    )


def _sharers(card: CardRoom, labels: Labels) -> tuple[Labels, ...]:
    before = set(card.sharers) if card.sharers or not card.pods else {UNLABELLED}
    after = before | {labels}
    return () if after == {UNLABELLED} else tuple(sorted(after))


def _groups(ask: Ask) -> tuple[Group, ...]:
    return groups_of([ask.sharing]) if ask.sharing is not None else ()
