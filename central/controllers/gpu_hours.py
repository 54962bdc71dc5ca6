"""Count GPU-seconds by namespace: requested (by pods that wait or hold), held by pods, and used by pods.

A whole card counts as 1. A share counts as the larger of its parts of the card's memory and compute, a MIG instance as its part
of the memory. A waiting pod's share or instance counts as a part of the average card. A card's use is divided among its pods by
their held parts, because drivers report it by card only. Cards in MIG mode, and nodes that do not report use, count as idle.

The inputs are the ledger, the pending pods, and node reports. Only changed nodes are counted again, in slices. Between two
scans the state of the first scan counts.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.assignment.model import Part
from central.ledger.ledger import Ledger
from central.ledger.model import Claim
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.request.model import ContainerRequest, DeviceRequest, at_one_time
from central.state.pending import PendingPods
from lading.devices.share import FULL_CORE
from lading.nodedevices import Gpu, NodeDevices
from lading.vocabulary import GpuUuid

SCAN_S: Final = 10.0
MOST_NAMESPACES: Final = 500  # maximum separately counted namespaces, because a metric's series are never removed
OTHERS: Final = "(others)"  # no namespace has such a name
_MILLI: Final = 1000
_PLANNED: Final = frozenset(
    {Claim.PREDICTED, Claim.NOMINATED, Claim.PLANNED, Claim.RESERVED}
)  # claims of a pod that is not bound and still waits
_GIGABYTES: Final = re.compile(r"\.([0-9]+)gb")  # memory in a MIG profile, such as 1g.10gb


class UseFeed:
    """Keep how busy each card is, from node reports. For an object that cannot be decoded, the last report stays."""

    def __init__(self) -> None:
        self.busy: dict[str, Mapping[GpuUuid, int]] = {}  # percent by card, by node
        self.changed_nodes: set[str] = set()

    def replaced(self, objects: Sequence[NodeDevices | Unreadable], version: str) -> None:
        for deleted in self.busy.keys() - {one.metadata.name for one in objects}:
            self._set(deleted, {})
        for one in objects:
            self.changed(one)

    def changed(self, obj: NodeDevices | Unreadable) -> None:
        if not isinstance(obj, Unreadable):
            self._set(obj.metadata.name, {use.uuid: use.busy_percent for use in obj.status.use if use.busy_percent})

    def removed(self, deleted: Ident, version: str) -> None:
        self._set(deleted.name, {})

    def _set(self, node: str, busy: Mapping[GpuUuid, int]) -> None:
        if self.busy.get(node, {}) == busy:
            return
        self.changed_nodes.add(node)
        if busy:
            self.busy[node] = busy
        else:
            self.busy.pop(node, None)


@dataclass(slots=True)
class _Node:
    """Hold thousandths of GPUs on one node, by namespace."""

    held: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    cards: int = 0
    memory_mib: int = 0


class GpuHours:
    """Count the GPU-seconds of namespaces. `clock`: seconds, monotonic."""

    def __init__(
        self, ledger: Ledger, pending: PendingPods, use: UseFeed, *, clock: Callable[[], float], faults: Faults
    ) -> None:
        self._faults = faults
        self.requested: dict[
            str, float
        ] = {}  # GPU-seconds by namespace since this leadership began; likewise `held` and `used`
        self.held: dict[str, float] = {}
        self.used: dict[str, float] = {}
        self._ledger = ledger
        self._pending = pending
        self._use = use
        self._clock = clock
        self._observed = -1
        self._nodes: dict[str, _Node] = {}
        self._now = _Node()  # all nodes together
        self._waiting: Counter[str] = Counter()
        self._at: float | None = None
        self._named: set[str] = set()

    async def run(self) -> None:
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        slices = Slices(self._clock)
        self._pass_time()
        names, self._observed = self._ledger.claims_changed_since(self._observed)
        busy, self._use.changed_nodes = self._use.changed_nodes, set()
        for name in {*names, *busy}:
            with self._faults.handling(Work.GPU_HOURS, name):  # a node that fails counts as before
                self._replace(name, self._count(name))
            await slices.pause()
        average_mib = self._now.memory_mib / self._now.cards if self._now.cards else 0.0
        waiting: Counter[str] = Counter()
        for pod in list(self._pending):
            with self._faults.handling(Work.GPU_HOURS, pod.shown):
                waiting[self._name(pod.namespace)] += round(_MILLI * gpus_requested(pod.request, average_mib))
            await slices.pause()
        self._waiting = waiting

    def _pass_time(self) -> None:
        """Add the time since the last scan to the totals, with the amounts of that scan."""
        now, before = self._clock(), self._at
        self._at = now
        if before is None:
            return
        for total, each in (
            (self.requested, self._waiting),
            (self.requested, self._now.held),
            (self.held, self._now.held),
            (self.used, self._now.used),
        ):
            for namespace, milli in each.items():
                total[namespace] = total.get(namespace, 0.0) + milli / _MILLI * (now - before)

    def _replace(self, name: str, counted: _Node) -> None:
        before = self._nodes.pop(name, _Node())
        if counted != _Node():
            self._nodes[name] = counted
        total = self._now
        total.held.subtract(before.held)
        total.held.update(counted.held)
        total.used.subtract(before.used)
        total.used.update(counted.used)
        total.cards += counted.cards - before.cards
        total.memory_mib += counted.memory_mib - before.memory_mib

    def _count(self, name: str) -> _Node:
        capacity, busy, result = self._ledger.capacity(name), self._use.busy.get(name, {}), _Node()
        cards = {card.gpu.uuid: card.gpu for card in capacity.cards}
        result.cards = len(cards)
        result.memory_mib = sum(gpu.usable_mib for gpu in cards.values())
        of_card: dict[GpuUuid, Counter[str]] = {}
        for held in self._ledger.holders(name):
            if held.claims.keys() <= _PLANNED:
                continue
            namespace = self._name(held.holder.namespace)
            for uuid, part in held.taken.gpus.items():
                of_card.setdefault(uuid, Counter())[namespace] += _milli_held(part, cards.get(uuid))
        for uuid, each in of_card.items():
            result.held.update(each)
            total = sum(each.values())
            for namespace, milli in each.items() if total else ():
                result.used[namespace] += round(_MILLI * busy.get(uuid, 0) / 100 * milli / total)
        return result

    def _name(self, namespace: str) -> str:
        if namespace not in self._named and len(self._named) >= MOST_NAMESPACES:
            return OTHERS
        self._named.add(namespace)
        return namespace


def _milli_held(part: Part, gpu: Gpu | None) -> int:
    if part.whole:
        return _MILLI
    usable_mib = gpu.usable_mib if gpu else 0
    mig_mib = sum(mig.memory_mib for mig in gpu.mig if mig.uuid in part.mig) if gpu else 0
    memory = (part.memory_mib + mig_mib) / usable_mib if usable_mib else 0.0
    return round(_MILLI * min(1.0, max(memory, part.core_percent / FULL_CORE)))


def gpus_requested(request: DeviceRequest, average_mib: float) -> float:
    """Return the number of GPUs that a waiting pod requests at one time. `average_mib`: memory of the cluster's average
    card."""
    each = 1.0
    if request.mig_profile:
        gigabytes = _GIGABYTES.search(request.mig_profile)
        each = min(1.0, int(gigabytes[1]) * 1024 / average_mib) if gigabytes and average_mib else 1.0
    return at_one_time(request.containers, lambda one: one.gpus * each + _of_share(one, average_mib))


def _of_share(container: ContainerRequest, average_mib: float) -> float:
    if (share := container.share) is None:
        return 0.0
    memory = (share.memory_mib or 0) / average_mib if average_mib else 0.0
    return share.cards * min(1.0, max(memory, share.percent / FULL_CORE))
