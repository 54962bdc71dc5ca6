"""Reserve a node's devices for a pod that waited too long for several whole GPUs.

Small pods take each GPU as soon as it is free, so that a pod for several GPUs may never start. A pod that was refused for
longer than `patience_s` gets a node. The node's free devices are held for the pod, and released devices are added until all are
there. No pod is evicted. The requeuer then requeues the pod, as after an eviction.

The inputs are the refused pods, the nodes of kube-scheduler's requests, nodes' labels and taints, and the ledger. The
reservations are nominations in the ledger, renewed with every scan.

Pods with devices also hold cpu and memory, and kube-scheduler names no node that lacks these. So every node counts that was
named since the patience ended. Nodes that lack cpu or memory count too, if the pod's node rules allow them. Rules that only
kube-scheduler evaluates may forbid such a node. If kube-scheduler leaves out the reserved node although cpu and memory suffice
there, the node is abandoned and excluded for `patience_s`. After MOST_ABANDONED exclusions only named nodes are chosen. If
kube-scheduler finds no node at all, it sends no request; then the pod's condition PodScheduled shows the refusal.

At most MOST_KEPT of the nodes are reserved, for the first pods in the queue. While a pod of higher priority is refused, pods of
lower priority get no reservation. Pods that can preempt use preemption instead. The node with the fewest missing GPUs and VFs
is chosen, and stays while the pod can fit and pods end there (decide/reservation.py). Pods must also end there until cpu
and memory suffice. A pod that is not bound within NOMINATION_S after its reservation is complete waits for `patience_s` again.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple

from central.decide.preempt import can_preempt
from central.decide.reservation import OBSERVED_S, Attempts, NodeReservation
from central.decide.scheduler import Scheduler
from central.ledger.claims import NOMINATION_S
from central.ledger.model import Claim, NodeCapacity
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.request.model import CpuMemory
from central.search.demand import Demand
from central.search.shortage import requested_cards
from central.state.nodes import Nodes
from central.state.pending import Pending
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0
KEPT_S: Final = 30.0  # lifetime of a nomination in seconds; each scan renews it
MOST_KEPT: Final = 0.03  # maximum part of the nodes with a reservation; at least one node
REMEMBERED: Final = 64  # maximum pods with remembered nodes, and pods for which one scan searches a node
TRIED: Final = 8  # maximum nodes tried for one pod in one scan
VAIN_S: Final = 60.0  # pause in seconds after a search without a possible node, unless the pod is refused again before
MOST_ABANDONED: Final = 3  # excluded nodes of one pod, after which only nodes named for it are chosen
_PLANS: Final = (Claim.PREDICTED, Claim.PLANNED, Claim.RESERVED)


class _Named(NamedTuple):
    """Hold the nodes that kube-scheduler named for a pod."""

    nodes: Collection[str]  # nodes of the last request; once the pod is due, of all requests since
    due: bool


_NOT_NAMED: Final = _Named((), False)


@dataclass(slots=True, kw_only=True)
class _Kept:
    node: str
    reservation: NodeReservation
    enough_at: float = math.inf  # time since which the node's cpu and memory suffice
    complete_at: float = math.inf  # time since which the node's devices, cpu and memory suffice
    guessed: bool = False  # kube-scheduler's last request named only one other node


class Patience:
    def __init__(
        self,
        scheduler: Scheduler,
        nodes: Nodes,
        *,
        patience_s: float,
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the task. `patience_s`: seconds until a refused pod gets a reservation; 0: never. `clock`: the scheduler's
        clock."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._nodes = nodes
        self._patience_s = patience_s
        self._clock = clock
        self._log = log
        self._named: dict[PodUid, _Named] = {}
        self._vain: dict[PodUid, float] = {}  # time of the next search for a pod that fits no node
        self._kept: dict[PodUid, _Kept] = {}
        self._attempts: dict[PodUid, Attempts] = {}
        self._again: dict[PodUid, float] = {}  # time when a pod that did not use its reservation is due again

    def refused(self, pod: Pending, names: Sequence[str]) -> None:
        """Store the nodes that kube-scheduler named. If the reserved node is not among them, exclude that node."""
        if not self._patience_s or self._scheduler.demand(pod.request).whole_peak <= 1:
            return
        before, due = self._named.pop(pod.uid, _NOT_NAMED), self._is_due(pod)
        self._named[pod.uid] = _Named(dict.fromkeys((*before.nodes, *names)) if before.due else names, due)
        self._vain.pop(pod.uid, None)
        if len(self._named) > REMEMBERED:
            waiting = [one for uid in self._named if (one := self._scheduler.pending.get(uid))]
            del self._named[max(waiting, key=self._scheduler.tenants.line()).uid]
        kept = self._kept.get(pod.uid)
        if kept is not None and kept.node not in names and self._clock() - kept.enough_at >= OBSERVED_S:
            if len(names) > 1 or kept.guessed:
                self._attempts_of(pod.uid).abandon(kept.node, self._clock() + self._patience_s)
            kept.guessed = True  # a single name may be kube-scheduler's guess; its next request then names all nodes

    async def run(self) -> None:
        while self._patience_s:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        """Reserve nodes for the first pods in the queue. A pod that can fit on no node is skipped for VAIN_S."""
        slices = Slices(self._clock)
        kept: dict[PodUid, _Kept] = {}
        most = max(1, int(MOST_KEPT * len(self._scheduler.ledger.nodes())))
        self._note_unasked()
        for pod in self._in_line():
            if len(kept) == most:
                break
            if self._faults.sets_aside(Work.PATIENCE, pod.shown):
                continue
            with self._faults.handling(Work.PATIENCE, pod.shown):
                reserved = await self._keep(pod, {one.node for one in kept.values()}, slices)
                if reserved is None:
                    self._vain[pod.uid] = self._clock() + VAIN_S
                elif self._clock() - reserved.complete_at > NOMINATION_S:
                    self._again[pod.uid] = self._clock() + self._patience_s
                    self._attempts_of(pod.uid).abandon(reserved.node, self._clock() + self._patience_s)
                else:
                    kept[pod.uid] = reserved
        for uid, reserved in self._kept.items():
            if (uid not in kept or kept[uid].node != reserved.node) and self._scheduler.room_for(uid) == ("", reserved.node):
                self._scheduler.ledger.claims.forget_nomination(uid)
        self._kept = kept

    async def _keep(self, pod: Pending, taken: Collection[str], slices: Slices) -> _Kept | None:
        """Reserve a node for the pod: the current one if the pod can still fit there, else another. None: no node is
        possible."""
        await slices.pause()
        before = self._kept.get(pod.uid)
        keeps = before is not None and before.node not in taken and self._may_stay(pod, before.node)
        if before is None or not keeps or self._keep_on(pod.uid, before) is None:
            return await self._choose(pod, taken, slices)
        if not before.reservation.is_over(self._clock()):
            return before
        other = await self._choose(pod, {*taken, before.node}, slices)
        if other is None:
            before.reservation = self._attempts_of(pod.uid).begin(self._clock())
            return before
        self._attempts_of(pod.uid).abandon(before.node, self._clock())
        return other

    async def _choose(self, pod: Pending, taken: Collection[str], slices: Slices) -> _Kept | None:
        """Reserve another node for the pod. None: no node is possible."""
        attempts, demand, missing = self._attempts_of(pod.uid), self._scheduler.demand(pod.request), []
        named = dict.fromkeys(self._named.get(pod.uid, _NOT_NAMED).nodes)
        for name in dict.fromkeys((*named, *(() if self._abandoned_many(attempts) else self._scheduler.ledger.nodes()))):
            abandoned = attempts.abandoned.get(name, -math.inf)
            if name not in taken and abandoned <= self._clock():
                lacking = self._missing(pod, demand, name, named=name in named)
                if lacking is not None:
                    missing.append((abandoned, lacking, name not in named, name))
            await slices.pause()
        for *_, name in nsmallest(TRIED, missing):
            await slices.pause()
            reserved = _Kept(node=name, reservation=attempts.begin(self._clock()))
            holders = self._keep_on(pod.uid, reserved)
            if holders is not None:
                fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid, "node": name}
                self._log.info(Event.ROOM_KEPT, f"waiting for {holders} pods on this node to end", **fields)
                return reserved
        return None

    # ---- the pods

    def _note_unasked(self) -> None:
        """Record pods as refused if kube-scheduler finds no node with enough cpu and memory, because it sends no request for
        these."""
        for pod in self._scheduler.pending:
            if pod.unschedulable and pod.refused_at is None and self._scheduler.demand(pod.request).whole_peak > 1:
                claimed = any(self._scheduler.ledger.own_claim(pod.uid, kind) is not None for kind in _PLANS)
                if not claimed and self._scheduler.waits_for_gang(pod.uid) is None:
                    self._scheduler.pending.refused(pod, self._clock())

    def _in_line(self) -> list[Pending]:
        """Return the pods that may get a reservation: pods that have one, then the others in queue order. Forget pods that do
        not wait any more."""
        pending, now = self._scheduler.pending, self._clock()
        self._named = {uid: names for uid, names in self._named.items() if pending.get_refused(uid)}
        self._attempts = {uid: attempts for uid, attempts in self._attempts.items() if pending.get_refused(uid)}
        self._again = {uid: due for uid, due in self._again.items() if due > now}
        self._vain = {uid: until for uid, until in self._vain.items() if until > now}
        waiting = [pod for pod in pending if pod.refused_at is not None]
        highest = max((pod.priority for pod in waiting), default=0)
        tried = (pod for pod in waiting if pod.priority == highest and pod.uid not in self._vain and self._is_due(pod))
        place = self._scheduler.tenants.line()
        first = nsmallest(REMEMBERED, tried, key=lambda pod: (pod.uid not in self._kept, place(pod)))
        return [pod for pod in first if not self._evicts_for(pod.uid) and self._in_quota(pod)]

    def _is_due(self, pod: Pending) -> bool:
        if pod.refused_at is None or self._clock() - pod.refused_at < self._patience_s or pod.in_gang or pod.quota is not None:
            return False
        if self._again.get(pod.uid, 0.0) > self._clock():
            return False
        return not can_preempt(self._scheduler, pod) and self._scheduler.demand(pod.request).whole_peak > 1

    def _evicts_for(self, uid: PodUid) -> bool:
        making_room_on, _ = self._scheduler.room_for(uid)
        return bool(making_room_on)

    def _in_quota(self, pod: Pending) -> bool:
        """Return whether its quota lets the pod start. A pod that was refused for another reason has passed its quota."""
        return pod.refused_for is not None or self._scheduler.quotas.admits([pod]) is None

    # ---- the node

    def _attempts_of(self, uid: PodUid) -> Attempts:
        return self._attempts.setdefault(uid, Attempts(patience_s=self._patience_s))

    def _abandoned_many(self, attempts: Attempts) -> bool:
        return sum(until > self._clock() for until in attempts.abandoned.values()) >= MOST_ABANDONED

    def _may_stay(self, pod: Pending, name: str) -> bool:
        abandoned = self._attempts_of(pod.uid).abandoned.get(name, -math.inf) > self._clock()
        return not abandoned and self._nodes.allow(pod.node_rules, name) is not False

    def _missing(self, pod: Pending, demand: Demand, name: str, *, named: bool) -> int | None:
        """Return the number of missing GPUs and VFs on the node. None: the pod cannot fit there, whichever pods end."""
        allowed = self._nodes.allow(pod.node_rules, name)
        if allowed is False or (allowed is None and not named):
            return None
        capacity = self._scheduler.ledger.without(pod.uid).capacity(name)
        if not named and capacity.has_resources(pod.cpu_memory):
            return None  # kube-scheduler's own rules forbid the node, or no request has followed the release of cpu or memory
        cards = requested_cards(capacity, demand)
        usable, vfs = sum(card.usable for card in cards), sum(vf.usable for vf in capacity.vfs)
        if usable < demand.whole_peak or vfs < demand.vfs_peak or not self._could_suffice(capacity, pod.cpu_memory):
            return None
        free = sum(card.free for card in cards)
        return max(0, demand.whole_peak - free) + max(0, demand.vfs_peak - sum(vf.free for vf in capacity.vfs))

    def _could_suffice(self, capacity: NodeCapacity, cpu_memory: CpuMemory) -> bool:
        """Return whether cpu and memory suffice once all pods with devices there have ended."""
        ledger = self._scheduler.ledger
        cpu_milli, memory_mib = capacity.cpu_milli, capacity.memory_mib
        for uid, _ in ledger.facts_on(capacity.name):
            held = ledger.cpu_memory_of(uid, capacity.name)
            cpu_milli, memory_mib = cpu_milli + held.cpu_milli, memory_mib + held.memory_mib
        return not capacity.resources_reported or (cpu_memory.cpu_milli <= cpu_milli and cpu_memory.memory_mib <= memory_mib)

    def _keep_on(self, uid: PodUid, kept: _Kept) -> int | None:
        """Nominate devices on the node so that as few pods as possible have to end. Return their number; None: the pod cannot
        fit there at all."""
        scheduler, pod, name = self._scheduler, self._scheduler.pending.get_refused(uid), kept.node
        if pod is None:
            return None
        enough = scheduler.ledger.without(uid).capacity(name).has_resources(pod.cpu_memory)
        kept.enough_at = min(kept.enough_at, self._clock()) if enough else math.inf
        holders = sorted(scheduler.ledger.facts_on(name), key=lambda one: (-len(one[1].gpus), one[0]))
        evicted: list[PodUid] = []
        for other in [uid, *(holder for holder, _ in holders if holder != uid)]:
            evicted.append(other)
            state = scheduler.ledger.without(*evicted)
            placement = scheduler.fit_pod(pod.shape, name, state)
            if placement is not None:
                until = self._clock() + KEPT_S
                scheduler.ledger.claims.nominate(
                    uid, name, placement.taken, until, pod.holder, cpu_memory=pod.cpu_memory, evicts=False
                )
                kept.complete_at = min(kept.complete_at, self._clock()) if len(evicted) == 1 else math.inf
                kept.reservation.observe(len(evicted) - 1, self._clock())
                return len(evicted) - 1
        return None
