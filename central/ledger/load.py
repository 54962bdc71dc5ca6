"""Compute the free cpu and memory of nodes: allocatable, less the requests of all pods that are bound there.

Pods without devices count too: every pod on a node with cards uses cpu that pods with cards need. A plan of central for a pod,
or a Binding under way, counts like a bound pod. A pod without devices has no claims: it is *expected* on the node that central
named, until the pod is bound or deleted, or the expectation's time is over. Sums are kept, so that the cost of a pod does not
depend on the other pods of the node. These changes have version numbers of their own, because most requests for devices do not
depend on cpu and memory.

It takes the requests of pods by node, and the allocatable amounts of nodes. It returns the free amounts by node, 0 for an
overcommitted node; and the nodes that changed since a version.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from central.ledger.changes import Changes
from central.ledger.model import PodLoad
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PodUid


class Left(NamedTuple):
    cpu_milli: int = 0
    memory_mib: int = 0
    reported: bool = False  # whether the Node object says its allocatable amounts


class Turnover(NamedTuple):
    """Count the pods that were bound since central started, and the bound pods that ended."""

    bound: int = 0
    ended: int = 0


UNKNOWN: Final = Left()


class Loads:
    def __init__(self) -> None:
        self.changes = Changes()
        self.turnover = Turnover()
        self._allocatable: dict[str, CpuMemory] = {}
        self._requested: dict[str, CpuMemory] = {}
        self._bound: dict[PodUid, tuple[str, CpuMemory]] = {}
        self._planned: dict[PodUid, dict[str, CpuMemory]] = {}  # planned pods: node → amounts
        self._expected: dict[PodUid, tuple[str, float]] = {}  # planned pods without devices: when the expectation ends

    def left(self, name: str, without: Iterable[PodUid] = (), more: Iterable[CpuMemory] = ()) -> Left:
        """Return the free cpu and memory as if the pods of `without` were not there, and `more` were requested."""
        reported = self._allocatable.get(name)
        if reported is None:
            return UNKNOWN
        cpu_milli, memory_mib = reported
        requested = self._requested.get(name, NO_CPU_MEMORY)
        cpu_milli, memory_mib = cpu_milli - requested.cpu_milli, memory_mib - requested.memory_mib
        for uid in without:
            given_back = self.of(uid, name)
            cpu_milli, memory_mib = cpu_milli + given_back.cpu_milli, memory_mib + given_back.memory_mib
        for taken in more:
            cpu_milli, memory_mib = cpu_milli - taken.cpu_milli, memory_mib - taken.memory_mib
        return Left(max(0, cpu_milli), max(0, memory_mib), True)

    def allocatable(self, name: str) -> CpuMemory | None:
        return self._allocatable.get(name)

    def of(self, uid: PodUid, name: str) -> CpuMemory:
        """Return the requests that count for this pod there, bound or planned."""
        node, cpu_memory = self._bound.get(uid, ("", NO_CPU_MEMORY))
        return cpu_memory if node == name else self._planned.get(uid, {}).get(name, NO_CPU_MEMORY)

    def bound_as(self, uid: PodUid) -> PodLoad | None:
        return PodLoad(uid, *self._bound[uid]) if uid in self._bound else None

    def bound(self) -> frozenset[PodUid]:
        return frozenset(self._bound)

    def bind(self, uid: PodUid, node: str, cpu_memory: CpuMemory) -> None:
        """Store the node to which the pod is bound; an empty name if it is not bound, or has ended."""
        former = self._bound.get(uid)
        if former == ((node, cpu_memory) if node else None):
            return
        names = {name for name in (node, former[0] if former else "") if name}
        before = {name: self.of(uid, name) for name in names}
        bound, ended = self.turnover
        self.turnover = Turnover(bound + (former is None), ended + (not node))
        if node:
            self._bound[uid] = node, cpu_memory
        else:
            del self._bound[uid]
        for name in names:
            self._add(name, before[name], self.of(uid, name))
        if node:
            self.forget(uid)

    def plan(self, uid: PodUid, node: str, cpu_memory: CpuMemory | None) -> None:
        """Record the requests of a pod that central plans to place there; None ends the plan."""
        planned = self._planned.get(uid)
        if (planned.get(node) if planned else None) == cpu_memory:
            return
        before = self.of(uid, node)
        if cpu_memory is not None:
            self._planned.setdefault(uid, {})[node] = cpu_memory
        elif planned is not None:
            del planned[node]
            if not planned:
                del self._planned[uid]
        self._add(node, before, self.of(uid, node))

    def expect(self, load: PodLoad, until: float) -> None:
        """Expect a pod without devices on the node that central named. It replaces the pod's earlier expectation; a bound pod
        is not changed."""
        self.forget(load.uid)
        if load.uid not in self._bound:
            self._expected[load.uid] = load.node, until
            self.plan(load.uid, load.node, load.cpu_memory)

    def expected_on(self, uid: PodUid) -> str:
        """Return the node on which this pod without devices is expected; empty if there is none."""
        return self._expected[uid][0] if uid in self._expected else ""

    def forget(self, uid: PodUid) -> None:
        if uid in self._expected:
            node, _ = self._expected.pop(uid)
            self.plan(uid, node, None)

    def expire(self, now: float) -> None:
        """End expectations whose time is over."""
        for uid in [uid for uid, (_, until) in self._expected.items() if until <= now]:
            self.forget(uid)

    def offer(self, node: str, allocatable: CpuMemory | None) -> None:
        """Store the allocatable amounts of a Node; None if the Node or its amounts are unknown."""
        if self._allocatable.get(node) == allocatable:
            return
        if allocatable is None:
            del self._allocatable[node]
        else:
            self._allocatable[node] = allocatable
        self.changes.mark(node)

    def requested(self) -> dict[str, CpuMemory]:
        return dict(self._requested)

    def _add(self, name: str, less: CpuMemory, more: CpuMemory) -> None:
        if less == more:
            return
        cpu_milli, memory_mib = self._requested.get(name, NO_CPU_MEMORY)
        total = CpuMemory(cpu_milli - less.cpu_milli + more.cpu_milli, memory_mib - less.memory_mib + more.memory_mib)
        if total == NO_CPU_MEMORY:
            del self._requested[name]
        else:
            self._requested[name] = total
        self.changes.mark(name)
