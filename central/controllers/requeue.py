"""Requeue refused pods once devices for them are free.

kube-scheduler does not know when devices become free: a pod that an extender refused waits up to five minutes, unless the pod
changes. So central *touches* the pod: a patch of its status moves it to the front of kube-scheduler's queue at once (observed
with 1.36; any change does). The ledger must release the devices before: else the pod would be refused again.

New free capacity begins a *round* for each request that fits there. In a round every refused pod is requeued at most once, and
only a few pods at a time for each node that fits. One half of these are the first in the queue: by priority, fair between
namespaces, then by age (central.state.tenants). The other half are the pods without a turn for the longest time: the first
pods may be unable to use these nodes (another taint, no cpu), and new rounds may come faster than one ends. A pod that is
refused again waits for the next round.

For each request only nodes with new free capacity are judged; all nodes only if the request's affinity group left its card. One
scan may lack the time: central judges all nodes when it starts, for maybe ten thousand requests. Then the newest and the oldest
entries take turns, so that a release is noticed soon, and none waits for ever. Work is done in slices: a scan never blocks the
loop.

Pods that their quota refused are in no round: they are requeued when the quota allows them.

Devices that are held for one pod (*nominated*) are in no round: that pod is requeued when all of its devices are free.

Source: k8s.io/kubernetes/pkg/scheduler (activeQ, backoffQ, unschedulable pods), checked in tests/cluster.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

from central.api.times import micro_time_now
from central.assignment.sharing import groups_of
from central.decide.scheduler import Scheduler
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.request.model import DeviceRequest
from central.state.pending import Pending, in_line
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, RefusedError, TooManyRequestsError
from lading.kube.resource import PODS
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 0.1  # seconds between two scans; kube-scheduler's own back-off of up to 1 s comes on top
JUDGED_S: Final = 0.3  # seconds of one scan for judging new free capacity; then the pods found so far are requeued
GOING_ON_S: Final = 0.1  # seconds of one scan for nodes that a filter request had no time to judge
FOR_EACH_NODE: Final = 8  # pods requeued for one node in one scan: most nodes have 8 cards
FIRST: Final = FOR_EACH_NODE // 2  # pods of FOR_EACH_NODE that are the first in the queue
AT_ONCE: Final = 32  # maximum touches under way; the API server has other clients to serve
CONDITION: Final = "lading.dev/Considered"
TIMEOUT_S: Final = 4.0


async def touch_pod(client: KubeClient, pod: Pending) -> bytes:
    """Patch a condition of the pod's status. Return the new state as JSON. Raise KubeError; ConflictError: another pod has
    the name.

    The new resourceVersion requeues the pod in kube-scheduler, and keeps a lost Binding from succeeding later (binder.py). The
    condition's message changes with every touch, because the API server ignores a patch without a change.

    Source: PodCondition (k8s.io/api core/v1); the strategic merge patch of `pods/status` merges conditions by their type.
    """
    at = micro_time_now()
    condition = {
        "type": CONDITION,
        "status": "True",
        "reason": "RoomAppeared" if pod.refused_at is not None else "BindingUnclear",
        "message": f"lading-central requeued this pod at {at}",
        "lastTransitionTime": at,
    }
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    return await client.merge_lists(PODS.path(pod.namespace, pod.name, "status"), body, timeout_s=TIMEOUT_S)


@dataclass(slots=True, eq=False)
class _Round:
    """Hold a round of one request. `nodes`: nodes with new free capacity that fit the request, each with the number of the scan
    in which it last did."""

    request: DeviceRequest
    number: int = 0  # number of the last scan in which a node was added
    nodes: dict[str, int] = field(default_factory=dict)


_Waiting = tuple[Pending, _Round]


class Requeuer:
    """Requeue refused pods. `touch` changes the pod's status. `clock`: seconds, monotonic."""

    def __init__(
        self,
        scheduler: Scheduler,
        touch: Callable[[Pending], Awaitable[object]],
        *,
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._touch = touch
        self._clock = clock
        self._log = log
        # An unjudged node is judged for all requests, an unjudged request on all nodes. An entry keeps its position.
        self._unjudged: OrderedDict[str | DeviceRequest, None] = OrderedDict()
        self._newest_next = True
        self._rounds: dict[DeviceRequest, _Round] = {}
        self._round = 0
        self._waking: set[PodUid] = set()
        self._wanted: dict[PodUid, None] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as touches:
            while True:
                for pod in await self.scan():
                    self._waking.add(pod.uid)
                    touches.create_task(self._request_requeue(pod))
                await asyncio.sleep(SCAN_S)

    def want(self, uids: Iterable[PodUid]) -> None:
        """Requeue these refused pods with the next scan, all at once."""
        self._wanted.update(dict.fromkeys(uids))

    async def scan(self) -> list[Pending]:
        """Return the pods to requeue now. A returned pod had its turn in this round."""
        self._round += 1
        slices = Slices(self._clock)
        ledger = self._scheduler.ledger
        freed, moved = ledger.take_freed(), ledger.take_moved_groups()
        for name in freed:
            self._unjudged.setdefault(name)
        for request in self._scheduler.pending.refused_requests() if moved else ():
            # An affinity group that left its card may open another card, on a node that was free all the time.
            if request.sharing is not None and not moved.isdisjoint(groups_of([request.sharing])):
                self._unjudged.setdefault(request)
        await self._judge(slices)
        decided = await self._go_on(slices)
        nominated = [pod async for pod in self._nominated(frozenset(freed), slices)]
        chosen = await self._choose(slices)
        together = [pod for uid in self._wanted if (pod := self._scheduler.pending.get_refused(uid))]
        self._wanted = {pod.uid: None for pod in together if pod.uid in self._waking}  # requeued again after this touch
        free = self._scheduler.quotas.take_free(self._scheduler.tenants.in_turn)
        others = [pod for pod in (*together, *free) if pod.uid not in self._waking]
        return [*{pod.uid: pod for pod in (*others, *nominated, *decided, *chosen)}.values()]

    # ---- new free capacity

    async def _judge(self, slices: Slices) -> None:
        """Judge at least one unjudged node or request, and further ones until JUDGED_S is over."""
        until = self._clock() + JUDGED_S
        while self._unjudged:
            next_one, _ = self._unjudged.popitem(last=self._newest_next)
            self._newest_next = not self._newest_next
            for request, name in self._pairs(next_one):
                if self._fits_on(request, name):
                    current = self._rounds.setdefault(request, _Round(request))
                    current.number = current.nodes[name] = self._round
                await slices.pause()
            if self._clock() >= until:
                break

    def _fits_on(self, request: DeviceRequest, name: str) -> bool:
        """Return whether the request fits on the node now. Nodes that are set aside after an error fit no request."""
        if self._faults.sets_aside(Work.REQUEUE, name):
            return False
        with self._faults.handling(Work.REQUEUE, name):
            return self._scheduler.fits_on(request, name)
        return False

    def _pairs(self, unjudged: str | DeviceRequest) -> Iterator[tuple[DeviceRequest, str]]:
        pending, ledger = self._scheduler.pending, self._scheduler.ledger
        if isinstance(unjudged, DeviceRequest):
            return ((unjudged, name) for name in ledger.nodes())
        return ((request, unjudged) for request in pending.refused_requests())

    # ---- nodes that a filter request had no time to judge

    async def _go_on(self, slices: Slices) -> list[Pending]:
        """Judge further nodes for one request that was refused before all nodes were judged. Return its pods once a node fits
        or all nodes are judged. Requests take turns, so that none waits for the end of another."""
        unfinished = self._scheduler.unfinished
        request = next(iter(unfinished), None)
        if request is None:
            return []
        del unfinished[request]
        until = self._clock() + GOING_ON_S
        with self._faults.handling(Work.REQUEUE, ""):  # a request has no name
            for _ in self._scheduler.verdicts.judging(request):
                await slices.pause()
                if self._clock() >= until:
                    unfinished.setdefault(request)
                    break
        if request in unfinished and not self._scheduler.judged(request).fits:
            return []
        waiting = [
            pod for pod in self._scheduler.pending.refused_with(request) if pod.undecided and pod.uid not in self._waking
        ]
        for pod in waiting:
            pod.undecided = False
        return waiting

    # ---- the pods to requeue

    async def _choose(self, slices: Slices) -> list[Pending]:
        line: list[_Waiting] = []
        longest: list[_Waiting] = []
        in_turn = self._scheduler.tenants.in_turn
        for request in [*self._rounds]:
            waiting, current = self._waiting(request), self._rounds[request]
            if not waiting or not current.nodes:
                del self._rounds[request]
                continue
            seats = len(current.nodes)
            ready = [pod for pod in waiting if pod.uid not in self._waking]
            line += [(pod, current) for pod in islice(in_turn(ready), FIRST * seats)]
            # The first pods of the queue may be among these, so take enough for both halves.
            longest += [(pod, current) for pod in nsmallest(FOR_EACH_NODE * seats, ready, key=_last_turn)]
            await slices.pause()
        of = {pod.uid: current for pod, current in line}
        line = [(pod, of[pod.uid]) for pod in in_turn(pod for pod, _ in line)]
        chosen = [one async for one in self._seated(line, FIRST, slices)]
        had = {pod.uid for pod, _ in chosen}
        others = sorted((one for one in longest if one[0].uid not in had), key=lambda one: _last_turn(one[0]))
        chosen += [one async for one in self._seated(others, FOR_EACH_NODE - FIRST, slices)]
        for pod, current in chosen:
            pod.requeued_in = current.number
        return [pod for pod, _ in chosen]

    def _waiting(self, request: DeviceRequest) -> list[Pending]:
        """Return the pods without a turn in the current round, in queue order. The round ends without such pods or nodes."""
        number = self._rounds[request].number
        return [pod for pod in self._scheduler.pending.refused_with(request) if pod.requeued_in != number]

    async def _seated(self, line: Iterable[_Waiting], for_each: int, slices: Slices) -> AsyncIterator[_Waiting]:
        """Yield pods in queue order, at most `for_each` for each node where the request still fits."""
        seats: Counter[str] = Counter()
        open_nodes: dict[_Round, list[str]] = {}
        for pod, current in line:
            nodes = open_nodes.setdefault(current, [*current.nodes])
            while nodes and (seats[nodes[-1]] >= for_each or not self._still_fits(current, nodes[-1])):
                nodes.pop()
                await slices.pause()
            await slices.pause()
            if nodes:
                seats[nodes[-1]] += 1
                yield pod, current

    def _still_fits(self, current: _Round, name: str) -> bool:
        """Return whether the request still fits the node; evaluated once in a scan."""
        if current.nodes.get(name) != self._round:
            if not self._fits_on(current.request, name):
                current.nodes.pop(name, None)
                return False
            current.nodes[name] = self._round
        return True

    # ---- nominated pods

    async def _nominated(self, freed: AbstractSet[str], slices: Slices) -> AsyncIterator[Pending]:
        for claim in self._scheduler.ledger.nominations():
            pod = self._scheduler.pending.get_refused(claim.holder.pod)
            if claim.node not in freed or pod is None or pod.uid in self._waking:
                continue
            if self._has_place(pod, claim.node):
                yield pod
            await slices.pause()

    def _has_place(self, pod: Pending, node: str) -> bool:
        if self._faults.sets_aside(Work.REQUEUE, pod.shown):
            return False
        with self._faults.handling(Work.REQUEUE, pod.shown):
            return self._scheduler.placement(pod, node) is not None
        return False

    # ---- touching the pods

    async def _request_requeue(self, pod: Pending) -> None:
        try:
            with self._faults.handling(Work.REQUEUE, pod.shown):
                await self._touch_while_refused(pod)
        finally:
            self._waking.discard(pod.uid)

    async def _touch_while_refused(self, pod: Pending) -> None:
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
        backoff = Backoff()
        while True:
            try:
                async with self._slots:
                    known = self._scheduler.pending.get_refused(pod.uid)  # kube-scheduler may have tried it meanwhile
                    if known is None:
                        return
                    await self._touch(known)
            except (NotFoundError, ConflictError):
                return  # the pod was deleted or replaced, and the watch will report it
            except KubeError as e:
                self._log.warning(Event.POD_WOKEN, f"cannot requeue, retrying unless refused: {e}", **fields)
                if isinstance(e, RefusedError) and not isinstance(e, TooManyRequestsError):
                    return  # a retry would be refused too; the next round tries again
                await asyncio.sleep(backoff.failed(at_least_s=e.retry_after_s))
            else:
                self._scheduler.counts.requeued += 1
                self._log.info(Event.POD_WOKEN, **fields)
                return


def _last_turn(pod: Pending) -> tuple[int, tuple[int, str, PodUid]]:
    """Return the sort key of the last turn. Pods without a turn come first."""
    return pod.requeued_in, in_line(pod)
