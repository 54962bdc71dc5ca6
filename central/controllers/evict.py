"""Evict pods: victims of a pod of higher priority, and one of two pods that hold the same device.

Both use the Eviction API: disruption budgets and grace periods count. A victim's devices are free when the pod is deleted and
its node does not report them any more. They are held for the preemptor (*nominated*) until it is bound: while its victims end,
and NOMINATION_S longer.

A plan respects the disruption budgets that the watch shows. Every victim passes a dry run before the first eviction; a victim
that the API refuses is excluded from plans for SPARED_S. After the first eviction the plan stays, and the eviction of a refused
victim is repeated. If budgets leave no plan, central plans again after SPARED_S. Plans are made one at a time, in queue order.

Two pods never hold one device in normal operation: the node refuses the second pod. Exceptions are two leaders in a partitioned
network, or an annotation not written by central. Then the pod with the node's grant stays; else the younger pod is evicted.
Only one pod is evicted at a time, because its end may resolve the conflict.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from central.controllers.event_reasons import EventReason
from central.decide.preempt import Plan, can_preempt, plans, renewed
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection
from central.ledger.claims import NOMINATION_S
from central.ledger.model import Clash, Holder, PodRecord
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.quota.checks import QuotaRefusal
from central.quota.model import Owner
from central.request.model import DeviceRequest
from central.state.budgets import Budgets
from central.state.counts import EvictOutcome
from central.state.pending import Pending
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, TooManyRequestsError
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0  # seconds between two scans for conflicts, and between two checks of a nomination
SPARED_S: Final = 30.0  # seconds until the eviction of a refused victim is tried again
PAUSE_S: Final = 0.1  # pause after a plan with victims, until the watch shows its effect


@dataclass(slots=True)
class _WithoutPlan:
    """Keep requests without a plan in one state of ledger and budgets. `applied`: True if a budget or the Eviction API was the
    cause."""

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
        """Create the evictor. `budgets` returns None until they are read; then no pod is evicted for another one. `leads` is
        called before each eviction. `record_event` writes an Event: pod, reason, message."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._budgets = budgets
        self._leads = leads
        self._record_event = record_event
        self._scheduler = scheduler
        self._client = client
        self._clock = clock
        self._log = log
        self._counts = scheduler.counts
        self._spared: dict[PodUid, float] = {}  # time until which a pod is not chosen as a victim
        self._wanting: dict[PodUid, Sequence[str]] = {}  # pods to plan for, with the nodes of kube-scheduler's request
        self._planner: asyncio.Task[None] | None = None
        self._busy: dict[PodUid, asyncio.Task[None]] = {}  # tasks that evict victims or wait for a budget, by preemptor
        self._without_plan = _WithoutPlan(None)
        self._reported: set[Clash] = set()

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
            await asyncio.sleep(0)  # a cached result would otherwise never yield to the event loop
            names = self._wanting.pop(pod.uid)
            if not self._faults.sets_aside(Work.EVICTIONS, pod.shown):
                with self._faults.handling(Work.EVICTIONS, pod.shown):
                    await self._plan_for(pod, names)

    async def _plan_for(self, pod: Pending, names: Sequence[str]) -> None:
        protection = self.protection()
        result = None if protection is None else await self._plan_new(pod, names, protection)
        if result is not None:
            self._counts.nominated += 1
            reason = f"pod {pod.namespace}/{pod.name} of higher priority needs its devices"
            self.make_room(result, pod, names, reason=EventReason.PREEMPTED, cause=reason)
            await asyncio.sleep(PAUSE_S)
        elif protection is None or protection.applied:
            self._work_for(pod, names, asyncio.sleep(SPARED_S))

    def works_for(self, uid: PodUid) -> bool:
        """Return whether pods are being evicted for this pod, or devices are held for it."""
        return uid in self._busy or bool(self._scheduler.nominated_node(uid))

    def make_room(self, plan: Plan, pod: Pending, names: Sequence[str], *, reason: str, cause: str) -> None:
        """Start a plan in the same turn of the event loop in which it was made. `reason` and `why`: for the victims' Events."""
        self._nominate(plan, pod)
        self._work_for(pod, names, self._carry_out(plan, pod, reason, cause))

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
        result = await self._plan(pod.uid, names, protection)
        if result is None:
            self._without_plan.applied[key] = protection.applied
        return result

    async def _plan(self, uid: PodUid, names: Sequence[str], protection: Protection) -> Plan | None:
        """Plan in slices. The plan is valid only in the current turn of the event loop."""
        slices, ledger = Slices(self._clock), self._scheduler.ledger
        while pod := self._scheduler.pending.get_refused(uid):
            result, version = None, ledger.version
            for so_far in plans(self._scheduler, pod, names, protection):
                result = so_far
                await slices.pause()
            pod = self._scheduler.pending.get_refused(uid)
            if result is None or pod is None:
                return None
            if ledger.version != version:
                result = renewed(self._scheduler, pod, names, result, protection)
            if result is not None:
                return result
        return None

    def _nominate(self, plan: Plan, pod: Pending) -> None:
        """Hold the devices, in the same turn of the event loop in which they were planned. If a victim does not end within its
        grace period and NOMINATION_S, the hold ends, so that another node can be planned."""
        until = self._clock() + max(victim.grace_s for victim in plan.victims) + NOMINATION_S
        victims = frozenset(victim.uid for victim in plan.victims)
        self._scheduler.take_from_lower(plan.node, plan.placement.taken, pod.priority)
        self._scheduler.ledger.claims.nominate(pod.uid, plan.node, plan.placement.taken, until, pod.holder, victims=victims)

    async def _carry_out(self, plan: Plan, pod: Pending, reason: str, cause: str) -> None:
        """Evict the victims. If a victim is refused before the first eviction, the nomination ends, so that another plan can be
        made."""
        for victim in plan.victims:
            if self._has_to_go(victim, plan, pod) and not await self._evict(victim, reason, cause, dry_run=True):
                self._scheduler.ledger.claims.forget_nomination(pod.uid)
        evicted = False
        for victim in plan.victims:
            while self._has_to_go(victim, plan, pod):
                if await self._evict(victim, reason, cause):
                    evicted = True
                    break
                if not evicted:
                    self._scheduler.ledger.claims.forget_nomination(pod.uid)
                else:
                    await asyncio.sleep(SPARED_S)
        while self._scheduler.nominated_node(pod.uid):  # noqa: ASYNC110  it ends in many ways, and none of them sets an event
            await asyncio.sleep(SCAN_S)
        if self._scheduler.pending.get_refused(pod.uid):
            self._spare_stuck(plan)

    def _spare_stuck(self, plan: Plan) -> None:
        """Exclude victims that did not end in time from plans for NOMINATION_S."""
        until = self._clock() + NOMINATION_S
        records = map(self._scheduler.ledger.pod, [victim.uid for victim in plan.victims])
        self._spared |= {record.uid: until for record in records if record is not None and record.deleting}

    def _has_to_go(self, victim: PodRecord, plan: Plan, pod: Pending) -> bool:
        """Return whether the pod still waits for the plan's devices, and the victim has not begun to end."""
        now = self._scheduler.ledger.pod(victim.uid)
        waits = self._scheduler.nominated_node(pod.uid) == plan.node
        return waits and now is not None and not (now.deleting or now.terminal)

    def protection(self) -> Protection | None:
        """Return which pods cannot be evicted now; None until budgets are read: then no pod is evicted for another one."""
        budgets = self._budgets()
        return None if budgets is None else Protection(spared=self._now_spared(), budgets=budgets)

    def _now_spared(self) -> frozenset[PodUid]:
        now = self._clock()
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    # ---- two pods with one device

    async def run(self) -> None:
        while True:
            clashes = self._scheduler.ledger.conflicts()
            for clash in clashes:
                if not self._faults.sets_aside(Work.EVICTIONS, clash.device):
                    with self._faults.handling(Work.EVICTIONS, clash.device):
                        await self._end(clash)
            self._reported &= set(clashes)
            await asyncio.sleep(SCAN_S)

    async def _end(self, clash: Clash) -> None:
        if clash not in self._reported:
            self._reported.add(clash)
            pods = ",".join(clash.pods)
            self._log.error(Event.BIND_CONFLICT, "pods hold one device", node=clash.node, device=clash.device, pods=pods)
        ledger = self._scheduler.ledger
        records = [record for uid in clash.pods if (record := ledger.pod(uid))]
        if not all(map(ledger.exists, clash.pods)) or not records or any(record.deleting for record in records):
            return  # the device will be free without an eviction
        goes = records[-1]
        if goes.uid not in self._now_spared():
            await self._evict(goes, EventReason.DEVICE_CONFLICT, f"another pod holds {clash.device} on {clash.node}")

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        """Evict a pod, unless the API refused that within SPARED_S. Return whether it is evicted. A dry run changes nothing."""
        return victim.uid not in self._now_spared() and await self._evict(victim, reason, cause, dry_run=dry_run)

    async def _evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        """Evict a pod. Return False if that is refused or unclear; the pod is then spared for SPARED_S. A deleted or replaced
        pod counts as evicted. A dry run changes nothing."""
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
                f"{'cannot evict now' if spared else 'not known whether it was evicted'} ({cause}): {e}",
                **fields,
            )
            return False
        if dry_run:
            return True
        self._counts.evicted[reason, EvictOutcome.EVICTED] += 1
        self._log.warning(Event.POD_EVICTED, cause, **fields)
        self._record_event(victim.holder, reason, f"evicted: {cause}")
        return True
