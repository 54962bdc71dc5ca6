"""Keep the room of a node together for a pod that waited for several whole GPUs for too long.

A stream of small pods takes each GPU as soon as it is free, so that a pod that needs several at once may never start. A pod
that was refused for longer than the patience gets a node: what is free there is held for it now, and what becomes free is
added, until all of it is there. No pod is evicted. The waker then requeues the pod, as one for which pods were evicted.

It takes refused pods, with the nodes where kube-scheduler says that everything but the devices suffices, and the ledger. Pods
that hold devices hold cpu and memory too. So a node that was named once counts from then on, and as many pods have to end there
as cpu and memory take. It makes nominations in the ledger, new ones with every look. It keeps room on MOST_KEPT of the nodes at
most, for the first pods in line, and for none while a pod of higher priority is refused, which could use the room. A pod that
can preempt others is served by preemption instead. The node is the one where the fewest GPUs and VFs are missing; it stays the
same as long as it can do. A pod that is not bound within NOMINATION_S after its room is complete has to wait for its patience
once more.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from typing import Final

from central.ask.model import Requests
from central.fit.demand import Demand, policy_of, read_demand
from central.fit.model import Placement
from central.fit.shortage import asked_cards
from central.ledger.ledger import NOMINATION_S
from central.ledger.model import NodeRoom
from central.loop.slices import Slices
from central.scheduling.preempt import can_preempt
from central.scheduling.scheduler import Scheduler
from central.state.pending import Pending
from lading.log import Event, Log
from lading.vocabulary import PodUid

LOOK_S: Final = 1.0
KEPT_S: Final = 30.0  # of a nomination, which each look renews
MOST_KEPT: Final = 0.03  # of the nodes; one in any case
REMEMBERED: Final = 64  # pods whose nodes are known
TRIED: Final = 8  # nodes that are searched for one pod in one look


class Patience:
    def __init__(self, scheduler: Scheduler, *, patience_s: float, clock: Callable[[], float], log: Log) -> None:
        """Create it. `patience_s`: 0: room is never kept. `clock`: that of the scheduler."""
        self._scheduler = scheduler
        self._patience_s = patience_s
        self._clock = clock
        self._log = log
        self._nodes: dict[PodUid, Collection[str]] = {}  # of pods that waited for long enough
        self._vain: set[PodUid] = set()  # of these, those for which no node can do, until they are refused again
        self._kept: dict[PodUid, str] = {}
        self._complete: dict[PodUid, float] = {}  # since when
        self._again: dict[PodUid, float] = {}  # pods that did not take their room: when they are due again

    def refused(self, pod: Pending, names: Sequence[str]) -> None:
        """Remember the nodes where the pod could be, if it waited for long enough."""
        known = self._nodes.pop(pod.uid, ())
        if self._is_due(pod):
            self._nodes[pod.uid] = dict.fromkeys((*known, *names))
            self._vain.discard(pod.uid)
            if len(self._nodes) > REMEMBERED:
                last = max(filter(None, map(self._scheduler.pending.get, self._nodes)), key=self._scheduler.tenants.line())
                del self._nodes[last.uid]

    async def run(self) -> None:
        """Run until it is cancelled."""
        while self._patience_s:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Keep room for the first pods in line. A pod for which no node can do is passed over until it is refused again."""
        slices = Slices(self._clock)
        kept: dict[PodUid, str] = {}
        most = max(1, int(MOST_KEPT * len(self._scheduler.ledger.nodes())))
        for pod in self._in_line():
            if len(kept) == most:
                break
            name = await self._keep(pod, kept.values(), slices)
            if not name:
                self._vain.add(pod.uid)
            elif self._clock() - self._complete.get(pod.uid, math.inf) > NOMINATION_S:
                self._again[pod.uid] = self._clock() + self._patience_s
            else:
                kept[pod.uid] = name
        for uid, name in self._kept.items():
            if kept.get(uid) != name and self._scheduler.room_for(uid) == ("", name):
                self._scheduler.ledger.forget_nomination(uid)
        self._kept = kept
        self._complete = {uid: since for uid, since in self._complete.items() if uid in kept}

    async def _keep(self, pod: Pending, taken: Collection[str], slices: Slices) -> str:
        """Keep room for the pod, on the node where it is kept already if that can still do. Return the node; empty: none."""
        await slices.pause()
        names, before = self._nodes.get(pod.uid, ()), self._kept.get(pod.uid, "")  # it may fit by now
        if before in names and before not in taken and self._keep_on(pod.uid, before):
            return before
        demand, missing = self._demand(pod), []
        for name in names:
            if name not in taken:
                missing.append((self._missing(demand, pod.uid, name), name))
            await slices.pause()
        for _, name in nsmallest(TRIED, missing):
            await slices.pause()
            if self._keep_on(pod.uid, name):
                return name
        return ""

    def _in_line(self) -> list[Pending]:
        """Return the pods to keep room for: those for which it is kept, then the first in line. Forget pods that do not wait
        any more."""
        pending = self._scheduler.pending
        self._nodes = {uid: names for uid, names in self._nodes.items() if pending.get_refused(uid)}
        self._again = {uid: due for uid, due in self._again.items() if due > self._clock()}
        highest = max((pod.priority for pod in pending if pod.refused_at is not None), default=0)
        self._vain &= self._nodes.keys()
        tried = self._nodes.keys() - self._vain
        pods = [pod for uid in tried if (pod := pending.get_refused(uid)) and pod.priority == highest]
        place = self._scheduler.tenants.line()
        due = (pod for pod in pods if self._is_due(pod) and not self._evicts_for(pod.uid))
        return sorted(due, key=lambda pod: (pod.uid not in self._kept, place(pod)))

    def _is_due(self, pod: Pending) -> bool:
        if not self._patience_s or pod.refused_at is None or self._clock() - pod.refused_at < self._patience_s:
            return False
        if pod.quota is not None:
            return False  # room is of no use to it
        if self._again.get(pod.uid, 0.0) > self._clock():
            return False
        return not can_preempt(self._scheduler, pod) and self._demand(pod).whole_peak > 1

    def _evicts_for(self, uid: PodUid) -> bool:
        making_room_on, _ = self._scheduler.room_for(uid)
        return bool(making_room_on)

    def _demand(self, pod: Pending) -> Demand:
        return read_demand(pod.ask, policy_of(pod.ask, self._scheduler.policy), self._scheduler.limits)

    def _missing(self, demand: Demand, uid: PodUid, name: str) -> int:
        """Return how many GPUs and VFs are missing there."""
        room = self._scheduler.ledger.without(uid).room(name)
        free = sum(card.free for card in asked_cards(room, demand))
        return max(0, demand.whole_peak - free) + max(0, demand.vfs_peak - sum(vf.free for vf in room.vfs))

    def _keep_on(self, uid: PodUid, name: str) -> bool:
        """Hold the room there with as few of its pods gone as possible. Return False if the pod cannot fit there at all."""
        scheduler, pod = self._scheduler, self._scheduler.pending.get_refused(uid)
        if pod is None:
            return False
        holders = sorted(scheduler.ledger.facts_on(name), key=lambda one: (-len(one[1].gpus), one[0]))
        gone: list[PodUid] = []
        for other in [uid, *(holder for holder, _ in holders if holder != uid)]:
            gone.append(other)
            state = scheduler.ledger.without(*gone)
            placement = scheduler.verdict(pod.ask, name, state, pod.requests)
            if isinstance(placement, Placement) and _has_load(state.room(name), pod.requests):
                until = self._clock() + KEPT_S
                scheduler.ledger.nominate(uid, name, placement.taken, until, pod.holder, requests=pod.requests, evicts=False)
                if len(gone) == 1:
                    self._complete.setdefault(uid, self._clock())
                else:
                    self._complete.pop(uid, None)
                if self._kept.get(uid) != name:
                    fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": uid, "node": name}
                    self._log.info(Event.ROOM_KEPT, f"{len(gone) - 1} pods hold some of it", **fields)
                return True
        return False


def _has_load(room: NodeRoom, requests: Requests) -> bool:
    """Return whether the cpu and the memory suffice, as far as they are known."""
    enough = room.cpu_milli >= requests.cpu_milli and room.memory_mib >= requests.memory_mib
    return enough or not room.resources_known
