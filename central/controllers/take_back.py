"""Take back borrowed quota: evict pods of a quota above its limit, for a pod of another quota that lacks only devices.

A quota's limit is its runtime, or its min if it has no runtime. Once a lender requests its guaranteed devices again, the
borrower's runtime shrinks, so that it starts no more pods. Its running pods are evicted only here, and only if

- the borrower was above its limit for the whole delay, so that pods which end by themselves are waited for;
- a pod waits that its own quota allows without borrowing, and that only lacks devices;
- that pod then fits on a node where kube-scheduler would put it.

Only as many pods are evicted as needed (central.quota.giving), by the Eviction API, within disruption budgets, after a dry run.
The devices are held for the waiting pod meanwhile, as in a preemption. Each scan makes one plan, so that the next scan observes
its effect.
"""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from central.controllers.event_reasons import EventReason
from central.controllers.evict import Evictor
from central.decide.preempt import Plan
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection
from central.ledger.model import PodRecord
from central.loop.faults import Faults, Work
from central.loop.slices import result_in_slices
from central.loop.steps import result
from central.quota.amounts import total_of
from central.quota.checks import check
from central.quota.giving import Enough, Piece, QuotaUnit, UnitMember, beyond, choosing, importance, uids_of
from central.quota.model import QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.search.placement import Placement
from central.state.pending import Pending
from central.state.quotas import Counted
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0
REMEMBERED: Final = 64  # maximum remembered pods that fit nowhere

Holding = tuple[PodRecord, Counted]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    pieces: tuple[Piece, ...]
    node: str

    @property
    def cost(self) -> tuple[int, int, str]:
        """Return the sort key of nodes: the highest priority of a victim, then the number of victims."""
        return max(piece.unit.priority for piece in self.pieces), len(uids_of(self.pieces)), self.node


class TakeBack:
    def __init__(
        self,
        scheduler: Scheduler,
        evictor: Evictor,
        *,
        delay_s: float,
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the task. `delay_s`: seconds above its limit until a quota's pods are evicted; 0: never."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._quotas = scheduler.quotas
        self._evictor = evictor
        self._delay_s = delay_s
        self._clock = clock
        self._log = log
        self._names: dict[PodUid, Sequence[str]] = {}  # nodes that kube-scheduler allows, by pod that fits nowhere
        self._over_since: dict[QuotaId, float] = {}

    def refused(self, pod: Pending, names: Sequence[str]) -> None:
        """Store the nodes where kube-scheduler allows the pod, if it is in a quota."""
        self._names.pop(pod.uid, None)
        if self._delay_s and self._quotas.counted(pod.uid).quotas:
            self._names[pod.uid] = names
            if len(self._names) > REMEMBERED:
                last = max(filter(None, map(self._scheduler.pending.get, self._names)), key=self._scheduler.tenants.line())
                del self._names[last.uid]

    async def run(self) -> None:
        while self._delay_s:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        """Take back borrowed quota for the first pod of the queue that then fits."""
        snapshot = self._quotas.snapshot()
        due = self._due(snapshot) if snapshot is not None else {}
        pods = [pod for uid in self._names if (pod := self._scheduler.pending.get_refused(uid)) and pod.quota is None]
        self._names = {pod.uid: self._names[pod.uid] for pod in pods}
        for pod in sorted(pods, key=self._scheduler.tenants.line()) if due else ():
            if self._evictor.works_for(pod.uid) or self._faults.sets_aside(Work.TAKE_BACK, pod.shown):
                continue
            with self._faults.handling(Work.TAKE_BACK, pod.shown):
                if await self._take_back(pod, due.keys()):
                    return

    def units_for(
        self, pods: Sequence[Pending], names: Collection[str], protection: Protection
    ) -> tuple[QuotaSnapshot, list[QuotaUnit]] | None:
        """Return the pods that other quotas have to give back on these nodes, the most important first. Return None if `pods`,
        which start together, would borrow themselves."""
        snapshot = self._quotas.snapshot()
        if snapshot is None or not self._delay_s or not self._may_claim(pods):
            return None
        by_node = self._on_nodes(names, self._due(snapshot).keys(), protection)
        units = {unit.members[0].uid: unit for on_node in by_node.values() for unit in on_node}
        return snapshot, sorted(units.values(), key=importance)

    def _due(self, snapshot: QuotaSnapshot) -> dict[QuotaId, float]:
        """Return the quotas that have been above their limit for `delay_s`, with the time since when."""
        now = self._clock()
        over = [quota for quota in snapshot.tree.dividing if not snapshot.tree.groups.get(quota)]
        excess = [quota for quota in over if beyond(snapshot, snapshot.tree.quotas[quota])]
        self._over_since = {quota: self._over_since.get(quota, now) for quota in excess}
        return {quota: since for quota, since in self._over_since.items() if now - since >= self._delay_s}

    async def _take_back(self, pod: Pending, due: AbstractSet[QuotaId]) -> bool:
        protection = self._evictor.protection()
        if protection is None or not self._may_claim([pod]):
            return False
        names = self._names[pod.uid]
        choice = await result_in_slices(self._finding(pod, names, due, protection), self._clock)
        now, snapshot = self._scheduler.pending.get_refused(pod.uid), self._quotas.snapshot()
        if choice is None or now is None or now.quota is not None or snapshot is None:
            return False
        plan = self._renewed(now, choice, snapshot, due, protection)
        if plan is None:
            return False
        quotas = sorted({piece.unit.quota for piece in choice.pieces})
        reason = f"quota {', '.join(quotas)} uses more than it may, and {pod.namespace}/{pod.name} of another quota needs it"
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid, "node": plan.node}
        self._log.info(Event.QUOTA_TAKEN_BACK, f"evicting {len(plan.victims)} pods of quota {', '.join(quotas)}", **fields)
        self._evictor.make_room(plan, now, names, reason=EventReason.QUOTA_TAKEN_BACK, cause=reason)
        return True

    def _may_claim(self, pods: Sequence[Pending]) -> bool:
        """Return whether the quotas of these pods allow all of them together, without borrowing beyond their runtime."""
        snapshot = self._quotas.snapshot()
        counted = [self._quotas.counted(pod.uid) for pod in pods]
        quotas = {quota for one in counted for quota in one.quotas}
        if snapshot is None or not quotas:
            return False
        for quota in quotas:
            own = [one for one in counted if quota in one.quotas]
            requested, held = total_of(one.requested for one in own), total_of(one.held for one in own)
            preemptible = all(one.owner.preemptible for one in own)
            if check(snapshot, quota, requested, preemptible=preemptible, own=held, has_turn=lambda quota: False):
                return False
        return True

    def _finding(
        self, pod: Pending, names: Sequence[str], due: AbstractSet[QuotaId], protection: Protection
    ) -> Generator[None, None, _Choice | None]:
        """Search the node with the least important victims, in steps."""
        best: _Choice | None = None
        for name, units in self._on_nodes(names, due, protection).items():
            snapshot = self._quotas.snapshot()
            if snapshot is None:
                return None
            pieces = yield from choosing(snapshot, units, self._enough(pod, name))
            if pieces and (best is None or _Choice(pieces=pieces, node=name).cost < best.cost):
                best = _Choice(pieces=pieces, node=name)
        return best

    def _renewed(
        self, pod: Pending, choice: _Choice, snapshot: QuotaSnapshot, due: AbstractSet[QuotaId], protection: Protection
    ) -> Plan | None:
        """Choose again on the same node, in the current state. None: evictions there do not suffice any more, or are not
        needed."""
        units = self._on_nodes([choice.node], due, protection).get(choice.node, [])
        uids = uids_of(result(choosing(snapshot, units, self._enough(pod, choice.node))))
        victims = [record for uid in uids if (record := self._scheduler.ledger.pod(uid)) is not None]
        placement = self._placement(pod, choice.node, uids)
        if not uids or placement is None or protection.forbids(victims):
            return None
        ordered = sorted(victims, key=lambda victim: (victim.priority, -victim.created, victim.uid))
        return Plan(node=choice.node, victims=tuple(ordered), placement=placement)

    def _on_nodes(
        self, names: Collection[str], due: AbstractSet[QuotaId], protection: Protection
    ) -> dict[str, list[QuotaUnit]]:
        """Return the units of these quotas by node, without units that contain a protected pod. A unit may be on several
        nodes."""
        by_quota: dict[QuotaId, list[Holding]] = {}
        for record, counted in self._quotas.holders_in(due):
            for quota in counted.quotas:
                if quota in due:
                    by_quota.setdefault(quota, []).append((record, counted))
        wanted, by_node = set(names), dict[str, list[QuotaUnit]]()
        for quota, holding in by_quota.items():
            record_of = {record.uid: record for record, _ in holding}
            for unit in self._units_of(quota, holding):
                records = [record_of[member.uid] for member in unit.members]
                if not any(map(protection.covers, records)):
                    for name in wanted.intersection(record.node for record in records):
                        by_node.setdefault(name, []).append(unit)
        return {name: sorted(units, key=importance) for name, units in sorted(by_node.items())}

    def _units_of(self, quota: QuotaId, holding: Sequence[Holding]) -> Iterator[QuotaUnit]:
        """Yield the quota's pods that start and end together: a gang gives back as a whole, or its members beyond the
        minimum."""
        gangs = self._scheduler.gangs
        by_gang: dict[object, list[Holding]] = {}
        for record, counted in holding:
            gang = gangs.bound_with(record.uid)
            by_gang.setdefault(record.uid if gang is None else gang.key, []).append((record, counted))
        for pods in by_gang.values():
            gang = gangs.bound_with(pods[0][0].uid)
            yield QuotaUnit(
                quota=quota,
                members=tuple(UnitMember(record.uid, counted.held, record.created) for record, counted in pods),
                least=1 if gang is None else max(1, sum(gang.terms.least.values())),
                priority=max(record.priority for record, _ in pods),
                started=max(record.created for record, _ in pods),
                preemptible=all(counted.owner.preemptible for _, counted in pods),
            )

    def _enough(self, pod: Pending, name: str) -> Enough:
        def enough(ended: Collection[PodUid]) -> Generator[None, None, bool]:
            yield
            return self._placement(pod, name, ended) is not None

        return enough

    def _placement(self, pod: Pending, name: str, ended: Collection[PodUid]) -> Placement | None:
        """Return the pod's placement on the node without these pods and without pods that are ending."""
        ending = [record.uid for record in self._scheduler.ledger.bound_on(name) if record.deleting]
        state = self._scheduler.ledger.without(pod.uid, *ended, *ending)
        return self._scheduler.fit_devices(pod.shape, name, state)
