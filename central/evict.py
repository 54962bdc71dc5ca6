"""Evicts: victims of a pod of higher priority, and the younger of two pods that hold one device.

Both go by the Eviction API: disruption budgets count, and a pod ends in its own time. Its devices are free when the pod is
gone and its node does not report them any more. The room is held for the preemptor (*nominated*) until it is bound, or for as
long as a pod may take to end. A victim that a budget spares is left out of the next plans for a while. Where no plan is left,
the pod is looked at again after that while, as long as it is refused.

Two pods with one device should not happen: the node refuses the second. Where it did (two leaders in a network that broke, an
annotation written past central) the one whose assignment central did not sign goes, else the younger. One at a time: while one
of them is ending, it is not known yet whether another one has to.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from central.ask.pod import Pod
from central.bind.signer import Signer
from central.counts import EvictOutcome
from central.ledger.model import Clash, Holder, PodRecord
from central.pending import Pending
from central.preempt import Plan, plans, renewed
from central.scheduler import Scheduler
from central.slices import Slices
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, TooManyRequestsError
from lading.kube.resource import PODS
from lading.log import Event, Log
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PodUid

LOOK_S: Final = 1.0  # for pods with one device
# As long as room is held for a preemptor: a pod's grace period is 30 s by default, and then its node has to say so.
NOMINATION_S: Final = 120.0
SPARED_S: Final = 30.0  # until a victim that a budget spared is asked again
PAUSE_S: Final = 0.1  # between two plans: a thousand refused pods must not keep central busy with nothing else
PREEMPTED: Final = "Preempted"
CONFLICT: Final = "DeviceConflict"


class Evictor:
    def __init__(
        self,
        scheduler: Scheduler,
        client: KubeClient,
        signer: Signer | None,
        *,
        leads: Callable[[], bool],
        tell: Callable[[Holder, str, str], None],
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        """`leads` is asked before each eviction. `tell` writes for the pod's author: pod, reason, message."""
        self._signer = signer
        self._leads = leads
        self._tell = tell
        self._scheduler = scheduler
        self._client = client
        self._clock = clock
        self._log = log
        self._counts = scheduler.counts
        self._spared: dict[PodUid, float] = {}  # until when
        self._planning: dict[PodUid, asyncio.Task[None]] = {}
        self._said: set[Clash] = set()
        self._plans = asyncio.Lock()

    async def close(self) -> None:
        tasks = list(self._planning.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- for a pod of higher priority

    def refused(self, pod: Pending, names: Sequence[str]) -> None:
        """Told of each pod that fits nowhere. One that waits for its victims is let wait."""
        if pod.may_preempt and pod.uid not in self._planning and not self._scheduler.nominated_node(pod.uid):
            task = asyncio.get_running_loop().create_task(self._make_room(pod, names))
            self._planning[pod.uid] = task
            task.add_done_callback(lambda _: self._planning.pop(pod.uid, None))

    async def _make_room(self, pod: Pending, names: Sequence[str]) -> None:
        while self._scheduler.pending.get_refused(pod.uid):
            async with self._plans:
                spared = self._now_spared()
                found = await self._plan(pod.uid, names, spared)
                if found is not None:
                    self._nominate(found, pod)
                await asyncio.sleep(PAUSE_S)
            if found is None and not spared:
                return
            if found is None:
                await asyncio.sleep(SPARED_S)
            elif await self._carry_out(found, pod):
                return

    async def _plan(self, uid: PodUid, names: Sequence[str], spared: frozenset[PodUid]) -> Plan | None:
        """In slices. What it answers holds in this turn of the loop."""
        slices, ledger = Slices(self._clock), self._scheduler.ledger
        while pod := self._scheduler.pending.get_refused(uid):
            found, version = None, ledger.version
            for so_far in plans(self._scheduler, pod, names, spared=spared):
                found = so_far
                await slices.pause()
            pod = self._scheduler.pending.get_refused(uid)
            if found is None or pod is None:
                return None
            if ledger.version != version:
                found = renewed(self._scheduler, pod, names, found, spared=spared)
            if found is not None:
                return found
        return None

    def _nominate(self, found: Plan, pod: Pending) -> None:
        """In the turn of the loop in which it was planned."""
        self._counts.nominated += 1
        until = self._clock() + NOMINATION_S
        self._scheduler.ledger.nominate(pod.uid, found.node, found.placement.taken, until, pod.holder)

    async def _carry_out(self, found: Plan, pod: Pending) -> bool:
        """False: a budget spares a victim, and another plan may do."""
        for victim in found.victims:
            if self._scheduler.nominated_node(pod.uid) != found.node:
                return True  # the pod is bound, or gone: nobody has to go for it
            now = self._scheduler.ledger.pod(victim.uid)
            if now is None or now.deleting or now.terminal:
                continue
            if not await self._evict(victim, PREEMPTED, f"for {pod.namespace}/{pod.name} of higher priority"):
                self._scheduler.ledger.forget_nomination(pod.uid)
                return False
        return True

    def _now_spared(self) -> frozenset[PodUid]:
        now = self._clock()
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    # ---- two pods with one device

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            clashes = self._scheduler.ledger.conflicts()
            for clash in clashes:
                await self._end(clash)
            self._said &= set(clashes)
            await asyncio.sleep(LOOK_S)

    async def _end(self, clash: Clash) -> None:
        if clash not in self._said:
            self._said.add(clash)
            pods = ",".join(clash.pods)
            self._log.error(Event.BIND_CONFLICT, "pods hold one device", node=clash.node, device=clash.device, pods=pods)
        records = [record for uid in clash.pods if (record := self._scheduler.ledger.pod(uid))]
        if not records or any(record.deleting for record in records):
            return
        forged = [record for record in records if await self._is_forged(record)]
        goes = (forged or records)[-1]
        if goes.uid not in self._now_spared():
            await self._evict(goes, CONFLICT, f"another pod holds {clash.device} on {clash.node}")

    async def _is_forged(self, record: PodRecord) -> bool:
        """Whether it has an assignment that can not be by this central; False where that can not be read now. A pod that holds
        the device by its node's word alone has none."""
        if self._signer is None or record.taken is None:
            return False
        try:
            body = await self._client.get(PODS.path(record.namespace, record.name))
            annotations = msgspec.json.decode(body, type=Pod).metadata.annotations
        except (KubeError, msgspec.DecodeError):
            return False
        return self._signer.disowns(annotations.get(ASSIGNMENT, ""), annotations.get(ASSIGNMENT_SIGNATURE, ""))

    async def _evict(self, victim: PodRecord, reason: str, why: str) -> bool:
        """False: not now, and it is spared for a while. Gone, or another pod of the same name, is as good as evicted."""
        if not self._leads():
            return False
        fields = {"namespace": victim.namespace, "pod": victim.name, "pod_uid": victim.uid, "node": victim.node}
        try:
            await self._client.evict(namespace=victim.namespace, name=victim.name, uid=victim.uid)
        except (NotFoundError, ConflictError):
            return True
        except KubeError as e:
            self._spared[victim.uid] = self._clock() + SPARED_S
            spared = isinstance(e, TooManyRequestsError)
            self._counts.evicted[reason, EvictOutcome.SPARED if spared else EvictOutcome.UNCLEAR] += 1
            self._log.warning(Event.POD_EVICTED, f"{'not now' if spared else 'not known whether'}, {why}: {e}", **fields)
            return False
        self._counts.evicted[reason, EvictOutcome.EVICTED] += 1
        self._log.warning(Event.POD_EVICTED, why, **fields)
        self._tell(victim.holder, reason, f"evicted: {why}")
        return True
