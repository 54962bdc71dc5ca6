"""Evict pods: victims of a pod of higher priority, and one of two pods that hold one device.

Both go by the Eviction API: disruption budgets count, and a pod ends in its own time. Its devices are free when the pod is
gone and its node does not report them any more. They are held for the preemptor (*nominated*) until it is bound: while its
victims end, and NOMINATION_S longer.

A plan respects the disruption budgets that the watch shows. A dry run asks for every victim before the first one is evicted; a
victim that the API refuses is left out of the next plans for a while. Once a victim was evicted the plan stays, and a victim
that is refused then is asked for again. Where budgets leave no plan, central plans again after that while. Plans are made one
at a time, in the order of the queue.

Two pods with one device should not happen: the node refuses the second. Where it did (two leaders in a network that broke, an
annotation written past central) the pod whose grant the node reports stays; else the younger one goes. One at a time: while
one of them is ending, it is not known yet whether another one has to.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from central.ledger.claims import NOMINATION_S
from central.ledger.model import Clash, Holder, PodRecord
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.quota.checks import QuotaRefusal
from central.quota.model import Owner
from central.request.model import DeviceRequest
from central.scheduling.preempt import Plan, can_preempt, plans, renewed
from central.scheduling.scheduler import Scheduler
from central.scheduling.victims import Protection
from central.state.budgets import Budgets
from central.state.counts import EvictOutcome
from central.state.pending import Pending
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, TooManyRequestsError
from lading.log import Event, Log
from lading.vocabulary import PodUid

LOOK_S: Final = 1.0  # for pods with one device, and for the end of a nomination
SPARED_S: Final = 30.0  # until a victim that a budget spared is asked again
PAUSE_S: Final = 0.1  # after a plan with victims: the watch shows what became of it
PREEMPTED: Final = "Preempted"
CONFLICT: Final = "DeviceConflict"


@dataclass(slots=True)
class _WithoutPlan:
    """Keep requests without a plan in one state of ledger and budgets. True: a budget or the Eviction API was the cause."""

    state: object
    applied: dict[tuple[DeviceRequest, int, Owner, QuotaRefusal | None, tuple[str, ...]], bool] = field(default_factory=dict)


class Evictor:
    def __init__(
        self,
        scheduler: Scheduler,
        client: KubeClient,
        *,
        budgets: Callable[[], Budgets | None],
        leads: Callable[[], bool],
        record_event: Callable[[Holder, str, str], None],
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the evictor. `budgets` returns None while they are not known; then no pod is evicted for another one. `leads`
        is called before each eviction. `tell` writes an Event: pod, reason, message."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._budgets = budgets
        self._leads = leads
        self._record_event = record_event
        self._scheduler = scheduler
        self._client = client
        self._clock = clock
        self._log = log
        self._counts = scheduler.counts
        self._spared: dict[PodUid, float] = {}  # until when
        self._wanting: dict[PodUid, Sequence[str]] = {}  # pods to plan for, with the nodes that kube-scheduler asked about
        self._planner: asyncio.Task[None] | None = None
        self._busy: dict[PodUid, asyncio.Task[None]] = {}  # their victims are evicted, or a budget is waited for
        self._without_plan = _WithoutPlan(None)
        self._said: set[Clash] = set()

    async def close(self) -> None:
        tasks = [*self._busy.values(), *([self._planner] if self._planner else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- for a pod of higher priority

    def refused(self, pod: Pending, names: Sequence[str]) -> None:
        """Plan for a pod that fits nowhere, unless it waits for its victims or no pod has a lower priority."""
        if not can_preempt(self._scheduler, pod):
            return
        if not self.works_for(pod.uid):
            self._wanting[pod.uid] = names
            if self._planner is None or self._planner.done():
                self._planner = asyncio.get_running_loop().create_task(self._plan_all())

    async def _plan_all(self) -> None:
        """Plan for the refused pods, in the order of the queue, until there is none."""
        while pod := self._next():
            await asyncio.sleep(0)  # a plan that is known already takes no turn of the loop
            names = self._wanting.pop(pod.uid)
            if not self._faults.sets_aside(Work.EVICTIONS, pod.shown):
                with self._faults.handling(Work.EVICTIONS, pod.shown):
                    await self._plan_for(pod, names)

    async def _plan_for(self, pod: Pending, names: Sequence[str]) -> None:
        protection = self.protection()
        found = None if protection is None else await self._plan_new(pod, names, protection)
        if found is not None:
            self._counts.nominated += 1
            why = f"pod {pod.namespace}/{pod.name} of higher priority needs its devices"
            self.make_room(found, pod, names, reason=PREEMPTED, why=why)
            await asyncio.sleep(PAUSE_S)
        elif protection is None or protection.applied:
            self._work_for(pod, names, asyncio.sleep(SPARED_S))

    def works_for(self, uid: PodUid) -> bool:
        """Return whether pods are evicted for this one already, or room is kept for it."""
        return uid in self._busy or bool(self._scheduler.nominated_node(uid))

    def make_room(self, found: Plan, pod: Pending, names: Sequence[str], *, reason: str, why: str) -> None:
        """Carry out a plan, in the turn of the loop in which it was made. `reason` and `why`: of the victims' Events."""
        self._nominate(found, pod)
        self._work_for(pod, names, self._carry_out(found, pod, reason, why))

    def _next(self) -> Pending | None:
        waiting = [pod for uid in self._wanting if (pod := self._scheduler.pending.get_refused(uid))]
        self._wanting = {pod.uid: self._wanting[pod.uid] for pod in waiting}
        return min(waiting, key=self._scheduler.tenants.line(), default=None)

    def _work_for(self, pod: Pending, names: Sequence[str], work: Coroutine[Any, Any, None]) -> None:
        """Run `work` for one pod; then plan for the pod again if it is still refused."""

        async def whole() -> None:
            with self._faults.handling(Work.EVICTIONS, pod.shown):
                try:
                    await work
                finally:
                    del self._busy[pod.uid]
                if now := self._scheduler.pending.get_refused(pod.uid):
                    self.refused(now, names)

        self._busy[pod.uid] = asyncio.get_running_loop().create_task(whole())

    async def _plan_new(self, pod: Pending, names: Sequence[str], protection: Protection) -> Plan | None:
        """Plan for a pod, unless an equal request had no plan and nothing changed since."""
        state = self._scheduler.ledger.version, protection.spared, protection.budgets
        if state != self._without_plan.state:
            self._without_plan = _WithoutPlan(state)
        key = pod.request, pod.priority, pod.owner, pod.quota, tuple(names)
        if key in self._without_plan.applied:
            protection.applied = self._without_plan.applied[key]
            return None
        found = await self._plan(pod.uid, names, protection)
        if found is None:
            self._without_plan.applied[key] = protection.applied
        return found

    async def _plan(self, uid: PodUid, names: Sequence[str], protection: Protection) -> Plan | None:
        """Plan in slices. The plan holds in this turn of the loop."""
        slices, ledger = Slices(self._clock), self._scheduler.ledger
        while pod := self._scheduler.pending.get_refused(uid):
            found, version = None, ledger.version
            for so_far in plans(self._scheduler, pod, names, protection):
                found = so_far
                await slices.pause()
            pod = self._scheduler.pending.get_refused(uid)
            if found is None or pod is None:
                return None
            if ledger.version != version:
                found = renewed(self._scheduler, pod, names, found, protection)
            if found is not None:
                return found
        return None

    def _nominate(self, found: Plan, pod: Pending) -> None:
        """Hold the devices, in the turn of the loop in which they were planned. A victim that does not end within its grace
        period is waited for NOMINATION_S longer: then another node may do."""
        until = self._clock() + max(victim.grace_s for victim in found.victims) + NOMINATION_S
        victims = frozenset(victim.uid for victim in found.victims)
        self._scheduler.take_from_lower(found.node, found.placement.taken, pod.priority)
        self._scheduler.ledger.claims.nominate(pod.uid, found.node, found.placement.taken, until, pod.holder, victims=victims)

    async def _carry_out(self, found: Plan, pod: Pending, reason: str, why: str) -> None:
        """Evict the victims. If one cannot go before the first was evicted, the nomination ends: another plan may do."""
        for victim in found.victims:
            if self._has_to_go(victim, found, pod) and not await self._evict(victim, reason, why, dry_run=True):
                self._scheduler.ledger.claims.forget_nomination(pod.uid)
        evicted = False
        for victim in found.victims:
            while self._has_to_go(victim, found, pod):
                if await self._evict(victim, reason, why):
                    evicted = True
                    break
                if not evicted:
                    self._scheduler.ledger.claims.forget_nomination(pod.uid)
                else:
                    await asyncio.sleep(SPARED_S)
        while self._scheduler.nominated_node(pod.uid):  # noqa: ASYNC110  it ends in many ways, and none of them sets an event
            await asyncio.sleep(LOOK_S)
        if self._scheduler.pending.get_refused(pod.uid):
            self._spare_stuck(found)

    def _spare_stuck(self, found: Plan) -> None:
        """Keep victims that did not end in time out of the next plans."""
        until = self._clock() + NOMINATION_S
        records = map(self._scheduler.ledger.pod, [victim.uid for victim in found.victims])
        self._spared |= {record.uid: until for record in records if record is not None and record.deleting}

    def _has_to_go(self, victim: PodRecord, found: Plan, pod: Pending) -> bool:
        """Tell whether the pod still waits for the plan's devices, and the victim has not begun to end."""
        now = self._scheduler.ledger.pod(victim.uid)
        waits = self._scheduler.nominated_node(pod.uid) == found.node
        return waits and now is not None and not (now.deleting or now.terminal)

    def protection(self) -> Protection | None:
        """Return which pods cannot be evicted now; None while budgets are not known: then none is evicted for another."""
        budgets = self._budgets()
        return None if budgets is None else Protection(spared=self._now_spared(), budgets=budgets)

    def _now_spared(self) -> frozenset[PodUid]:
        now = self._clock()
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    # ---- two pods with one device

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            clashes = self._scheduler.ledger.conflicts()
            for clash in clashes:
                if not self._faults.sets_aside(Work.EVICTIONS, clash.device):
                    with self._faults.handling(Work.EVICTIONS, clash.device):
                        await self._end(clash)
            self._said &= set(clashes)
            await asyncio.sleep(LOOK_S)

    async def _end(self, clash: Clash) -> None:
        if clash not in self._said:
            self._said.add(clash)
            pods = ",".join(clash.pods)
            self._log.error(Event.BIND_CONFLICT, "pods hold one device", node=clash.node, device=clash.device, pods=pods)
        ledger = self._scheduler.ledger
        records = [record for uid in clash.pods if (record := ledger.pod(uid))]
        if not all(map(ledger.exists, clash.pods)) or not records or any(record.deleting for record in records):
            return  # the device will be free without an eviction
        goes = records[-1]
        if goes.uid not in self._now_spared():
            await self._evict(goes, CONFLICT, f"another pod holds {clash.device} on {clash.node}")

    async def evict(self, victim: PodRecord, reason: str, why: str, *, dry_run: bool = False) -> bool:
        """Evict a pod, unless it could not go a while ago. Return whether it goes. A dry run only asks."""
        return victim.uid not in self._now_spared() and await self._evict(victim, reason, why, dry_run=dry_run)

    async def _evict(self, victim: PodRecord, reason: str, why: str, *, dry_run: bool = False) -> bool:
        """Return False if the pod cannot go now; it is spared for a while. Gone, or another pod of the same name, is as good as
        evicted. A dry run only asks."""
        if not self._leads():
            return False
        fields = {"namespace": victim.namespace, "pod": victim.name, "pod_uid": victim.uid, "node": victim.node}
        try:
            await self._client.evict(namespace=victim.namespace, name=victim.name, uid=victim.uid, dry_run=dry_run)
        except (NotFoundError, ConflictError):
            return True
        except KubeError as e:
            self._spared[victim.uid] = self._clock() + SPARED_S
            spared = isinstance(e, TooManyRequestsError)
            self._counts.evicted[reason, EvictOutcome.SPARED if spared else EvictOutcome.UNCLEAR] += 1
            self._log.warning(
                Event.POD_EVICTED,
                f"{'cannot evict now' if spared else 'not known whether it was evicted'} ({why}): {e}",
                **fields,
            )
            return False
        if dry_run:
            return True
        self._counts.evicted[reason, EvictOutcome.EVICTED] += 1
        self._log.warning(Event.POD_EVICTED, why, **fields)
        self._record_event(victim.holder, reason, f"evicted: {why}")
        return True
